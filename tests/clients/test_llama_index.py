"""llama-index, by its class for servers that are like OpenAI's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, MessageRole, ThinkingBlock
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from tests.clients.asking import ADA, MODEL, Person, weather
from tests.clients.script import (
    GREETING,
    HELLO,
    PERSON_QUESTION,
    THOUGHT,
    WEATHER_ANSWER,
    WEATHER_QUESTION,
)

Make = Callable[..., OpenAILike]
THINKING: list[dict[str, Any]] = [
    {"reasoning_effort": "high"},
    {"extra_body": {"enable_thinking": True}},
    {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}},
]


@pytest.fixture(scope="module")
def make(base_url: str) -> Make:
    """Make a model."""
    settings: dict[str, Any] = {"is_chat_model": True, "is_function_calling_model": True, "max_retries": 0}
    return lambda **more: OpenAILike(
        **{"model": MODEL, "api_base": base_url, "api_key": "none", "context_window": 16384, **settings, **more}
    )


def says(text: str) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=text)]


def test_chat(make: Make) -> None:
    assert make().chat(says(HELLO)).message.content == GREETING
    assert make().complete(HELLO).text == GREETING


def test_stream(make: Make) -> None:
    assert "".join(chunk.delta or "" for chunk in make().stream_chat(says(HELLO))) == GREETING


@pytest.mark.parametrize("streaming", [False, True])
def test_tools_and_their_results(make: Make, streaming: bool) -> None:
    model, tools = make(), [FunctionTool.from_defaults(weather)]
    history = says(WEATHER_QUESTION)
    if streaming:
        answer = list(model.stream_chat_with_tools(tools, chat_history=history))[-1]
    else:
        answer = model.chat_with_tools(tools, chat_history=history)
    [call] = model.get_tool_calls_from_response(answer)
    assert call.tool_name == "weather"
    result = ChatMessage(
        role=MessageRole.TOOL,
        content=weather(**call.tool_kwargs),
        additional_kwargs={"tool_call_id": call.tool_id, "name": call.tool_name},
    )

    final = model.chat_with_tools(tools, chat_history=[*history, answer.message, result])
    assert final.message.content == WEATHER_ANSWER


def test_tools_that_are_sent_with_none(make: Make) -> None:
    assert make().chat_with_tools([], chat_history=says(HELLO)).message.content == GREETING


@pytest.mark.parametrize("by_schema", [False, True])
def test_structured_output(make: Make, by_schema: bool) -> None:
    model = make(should_use_structured_outputs=by_schema)

    assert model.structured_predict(Person, PromptTemplate(PERSON_QUESTION)) == ADA
    assert model.as_structured_llm(Person).chat(says(PERSON_QUESTION)).raw == ADA


@pytest.mark.parametrize("fields", THINKING, ids=str)
def test_thinking(make: Make, fields: dict[str, Any]) -> None:
    message = make(additional_kwargs=fields).chat(says(HELLO)).message

    assert [block.content.strip() for block in message.blocks if isinstance(block, ThinkingBlock)] == [THOUGHT]
    assert (message.content or "").strip() == GREETING


def test_thinking_in_a_stream(make: Make) -> None:
    chunks = list(make(additional_kwargs=THINKING[0]).stream_chat(says(HELLO)))

    assert "".join(chunk.delta or "" for chunk in chunks).strip() == GREETING
    thoughts = "".join(chunk.additional_kwargs.get("thinking_delta", "") for chunk in chunks)
    assert thoughts.strip() == THOUGHT
