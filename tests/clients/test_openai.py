"""The official client, in an older generation than the one of Headway's own tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
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

THINKING: list[dict[str, Any]] = [
    {"reasoning_effort": "high"},
    {"extra_body": {"enable_thinking": True}},
    {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}},
    {"extra_body": {"thinking": {"type": "enabled", "budget_tokens": 1024}}},
]


@pytest.fixture(scope="module")
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, question: str = HELLO, **fields: Any) -> Any:
    messages = [{"role": "user", "content": question}]
    return client.chat.completions.create(**{"model": MODEL, "messages": messages, **fields})


def test_chat(client: openai.OpenAI) -> None:
    answer = ask(client)

    assert answer.choices[0].message.content == GREETING
    assert answer.choices[0].finish_reason == "stop"


def test_stream(client: openai.OpenAI) -> None:
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == GREETING
    assert chunks[-1].usage.completion_tokens > 0


def test_chat_of_the_asynchronous_client(base_url: str) -> None:
    async def run() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            asked = [
                client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": HELLO}])
                for _ in range(20)
            ]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*asked)]

    assert asyncio.run(run()) == [GREETING] * 20


@pytest.mark.parametrize("exclude_none", [True, False])
def test_tools_and_their_results(client: openai.OpenAI, exclude_none: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": WEATHER_QUESTION}]
    answer = ask(client, messages=messages, tools=[WEATHER_TOOL])
    assert answer.choices[0].finish_reason == "tool_calls"
    [call] = answer.choices[0].message.tool_calls
    messages.append(answer.choices[0].message.model_dump(exclude_none=exclude_none))
    result = look_up(call.function.name, call.function.arguments)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    assert ask(client, messages=messages, tools=[WEATHER_TOOL]).choices[0].message.content == WEATHER_ANSWER


def test_tools_in_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": WEATHER_QUESTION}], tools=[WEATHER_TOOL]
    ) as stream:
        answer = stream.get_final_completion()

    [call] = answer.choices[0].message.tool_calls or []
    assert look_up(call.function.name, call.function.arguments)


def test_structured_output(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": PERSON_QUESTION}]
    answer = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Person)

    assert answer.choices[0].message.parsed == ADA


def test_structured_output_by_a_tool_of_the_clients_own_making(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": PERSON_QUESTION}]
    answer = client.chat.completions.parse(
        model=MODEL, messages=messages, tools=[openai.pydantic_function_tool(Person)], tool_choice="required"
    )

    [call] = answer.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == ADA


@pytest.mark.parametrize("fields", THINKING, ids=str)
def test_thinking(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    message = ask(client, **fields).choices[0].message

    assert (message.reasoning_content.strip(), message.content.strip()) == (THOUGHT, GREETING)


def test_thinking_in_a_stream(client: openai.OpenAI) -> None:
    deltas = [chunk.choices[0].delta for chunk in ask(client, stream=True, reasoning_effort="low")]

    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas).strip() == THOUGHT
    assert "".join(delta.content or "" for delta in deltas).strip() == GREETING


def test_thinking_before_a_call(client: openai.OpenAI) -> None:
    [choice] = ask(client, WEATHER_QUESTION, tools=[WEATHER_TOOL], reasoning_effort="high").choices

    assert choice.message.reasoning_content.strip() == THOUGHT
    assert not choice.message.content
    [call] = choice.message.tool_calls
    assert look_up(call.function.name, call.function.arguments)


@pytest.mark.parametrize("forced", [False, True], ids=["answer", "call"])
def test_thinking_before_an_output_that_has_a_form(client: openai.OpenAI, forced: bool) -> None:
    form: Any = {"response_format": Person}
    if forced:
        form = {"tools": [openai.pydantic_function_tool(Person)], "tool_choice": "required"}
    messages: list[Any] = [{"role": "user", "content": PERSON_QUESTION}]
    answer = client.chat.completions.parse(model=MODEL, messages=messages, reasoning_effort="high", **form)

    message: Any = answer.choices[0].message
    assert message.reasoning_content.strip() == THOUGHT
    assert (message.tool_calls[0].function.parsed_arguments if forced else message.parsed) == ADA


def test_thinking_switched_off(client: openai.OpenAI) -> None:
    message = ask(client, reasoning_effort="none").choices[0].message

    assert message.content == GREETING
    assert getattr(message, "reasoning_content", None) is None
