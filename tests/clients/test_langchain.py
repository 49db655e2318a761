"""langchain-openai."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from tests.clients.asking import ADA, MODEL, Person, weather
from tests.clients.script import (
    GREETING,
    HELLO,
    PERSON_QUESTION,
    WEATHER_ANSWER,
    WEATHER_QUESTION,
)

Make = Callable[..., ChatOpenAI]


@pytest.fixture(scope="module")
def make(base_url: str) -> Make:
    """Make a chat model."""
    return lambda **settings: ChatOpenAI(
        **{"model": MODEL, "base_url": base_url, "api_key": "none", "max_retries": 0, **settings}
    )


def test_chat(make: Make) -> None:
    answer = make().invoke([("system", "Be kind."), ("user", HELLO)])

    assert answer.content == GREETING
    assert answer.usage_metadata is not None


def test_stream(make: Make) -> None:
    chunks = list(make(stream_usage=True).stream(HELLO))

    assert "".join(str(chunk.content) for chunk in chunks) == GREETING
    assert [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]


@pytest.mark.parametrize("streaming", [False, True])
def test_tools_and_their_results(make: Make, streaming: bool) -> None:
    function = tool(weather)
    model = make(streaming=streaming).bind_tools([function])
    question = HumanMessage(WEATHER_QUESTION)
    answer = model.invoke([question])
    assert isinstance(answer, AIMessage)
    [call] = answer.tool_calls
    result = function.invoke(call)
    assert isinstance(result, ToolMessage)

    assert model.invoke([question, answer, result]).content == WEATHER_ANSWER


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("strict", [None, True, False])
def test_structured_output(make: Make, method: Literal["json_schema", "function_calling"], strict: bool | None) -> None:
    assert make().with_structured_output(Person, method=method, strict=strict).invoke(PERSON_QUESTION) == ADA


def test_structured_output_without_a_schema(make: Make) -> None:
    answer = make().with_structured_output(Person, method="json_mode").invoke(PERSON_QUESTION)

    assert answer == ADA


@pytest.mark.parametrize(
    "settings",
    [
        {"reasoning_effort": "high"},
        {"extra_body": {"enable_thinking": True}},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}},
    ],
    ids=str,
)
@pytest.mark.parametrize("streaming", [False, True])
def test_thinking(make: Make, settings: dict[str, Any], streaming: bool) -> None:
    """This library does not show the reasoning of servers that are not OpenAI's, so it must not be in the content."""
    answer = make(streaming=streaming, stream_usage=True, **settings).invoke(HELLO)

    assert str(answer.content).strip() == GREETING
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > len(GREETING.encode()) + 1
