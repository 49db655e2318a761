"""litellm, as its users name a server of their own: by the provider for vLLM, and by the one for any OpenAI API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import litellm
import pytest

from tests.clients.asking import ADA, MODEL, WEATHER_TOOL, Person, look_up
from tests.clients.script import (
    GREETING,
    HELLO,
    PERSON_QUESTION,
    THOUGHT,
    WEATHER_ANSWER,
    WEATHER_QUESTION,
)

Ask = Callable[..., Any]


@pytest.fixture(params=["hosted_vllm", "openai"])
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ask(base_url: str, provider: str) -> Ask:
    """Ask a question, or go on with ``messages``."""

    def completion(question: str = HELLO, **fields: Any) -> Any:
        messages = [{"role": "user", "content": question}]
        settings = {"api_base": base_url, "api_key": "none", "num_retries": 0}
        return litellm.completion(f"{provider}/{MODEL}", **{"messages": messages, **settings, **fields})

    return completion


def test_chat(ask: Ask) -> None:
    answer = ask()

    assert answer.choices[0].message.content == GREETING
    assert answer.usage.completion_tokens > 0


def test_stream(ask: Ask) -> None:
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == GREETING
    assert chunks[-1].usage.completion_tokens > 0


def test_prompts_marked_for_caching(ask: Ask) -> None:
    part = {"type": "text", "text": HELLO, "cache_control": {"type": "ephemeral"}}

    assert ask(messages=[{"role": "user", "content": [part]}]).choices[0].message.content == GREETING


def test_tools_and_their_results(ask: Ask) -> None:
    messages: list[Any] = [{"role": "user", "content": WEATHER_QUESTION}]
    message = ask(messages=messages, tools=[WEATHER_TOOL], tool_choice="auto").choices[0].message
    [call] = message.tool_calls
    result = look_up(call.function.name, call.function.arguments)
    messages += [message, {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": result}]

    assert ask(messages=messages, tools=[WEATHER_TOOL]).choices[0].message.content == WEATHER_ANSWER


def test_tools_in_a_stream(ask: Ask) -> None:
    chunks = list(ask(WEATHER_QUESTION, tools=[WEATHER_TOOL], stream=True))
    [call] = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls

    assert look_up(call.function.name, call.function.arguments)


def test_structured_output(ask: Ask) -> None:
    answer = ask(PERSON_QUESTION, response_format=Person)

    assert Person.model_validate_json(answer.choices[0].message.content) == ADA


@pytest.mark.parametrize(
    ("provider", "fields"),
    [
        ("hosted_vllm", {"reasoning_effort": "high"}),
        ("hosted_vllm", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ("hosted_vllm", {"chat_template_kwargs": {"enable_thinking": True}}),
        ("openai", {"reasoning_effort": "high", "allowed_openai_params": ["reasoning_effort"]}),
        ("openai", {"extra_body": {"enable_thinking": True}}),
    ],
    ids=str,
)
def test_thinking(ask: Ask, fields: dict[str, Any]) -> None:
    message = ask(**fields).choices[0].message

    assert (message.reasoning_content.strip(), message.content.strip()) == (THOUGHT, GREETING)


def test_thinking_in_a_stream(ask: Ask) -> None:
    deltas = [chunk.choices[0].delta for chunk in ask(stream=True, extra_body={"enable_thinking": True})]

    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas).strip() == THOUGHT
    assert "".join(delta.content or "" for delta in deltas).strip() == GREETING
