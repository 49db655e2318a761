"""pydantic-ai: agents, which call tools and give back objects."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.messages import ModelResponse, ThinkingPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.asking import ADA, MODEL, Person, weather
from tests.clients.script import (
    GREETING,
    HELLO,
    PERSON_QUESTION,
    THOUGHT,
    WEATHER_ANSWER,
    WEATHER_QUESTION,
)


@pytest.fixture
def model(base_url: str) -> OpenAIChatModel:
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=base_url, api_key="none"))


def test_chat(model: OpenAIChatModel) -> None:
    answer = Agent(model, system_prompt="Be kind.").run_sync(HELLO)

    assert answer.output == GREETING
    assert answer.usage.output_tokens > 0


def test_stream(model: OpenAIChatModel) -> None:
    async def run() -> list[str]:
        async with Agent(model).run_stream(HELLO) as stream:
            return [text async for text in stream.stream_text(delta=True)]

    assert "".join(asyncio.run(run())) == GREETING


def test_tools_and_their_results(model: OpenAIChatModel) -> None:
    assert Agent(model, tools=[weather]).run_sync(WEATHER_QUESTION).output == WEATHER_ANSWER


def test_tools_in_a_stream(model: OpenAIChatModel) -> None:
    async def run() -> str:
        async with Agent(model, tools=[weather]).run_stream(WEATHER_QUESTION) as stream:
            return await stream.get_output()

    assert asyncio.run(run()) == WEATHER_ANSWER


@pytest.mark.parametrize("form", [ToolOutput, NativeOutput, PromptedOutput])
@pytest.mark.parametrize("tools", [[], [weather]], ids=["alone", "with tools"])
def test_structured_output(model: OpenAIChatModel, form: Any, tools: list[Any]) -> None:
    assert Agent(model, output_type=form(Person), tools=tools).run_sync(PERSON_QUESTION).output == ADA


def test_thinking(model: OpenAIChatModel) -> None:
    for settings in (
        OpenAIChatModelSettings(openai_reasoning_effort="high"),
        OpenAIChatModelSettings(extra_body={"enable_thinking": True}),
    ):
        answer = Agent(model, model_settings=settings).run_sync(HELLO)

        response = answer.all_messages()[-1]
        assert isinstance(response, ModelResponse)
        assert [part.content.strip() for part in response.parts if isinstance(part, ThinkingPart)] == [THOUGHT]
        assert answer.output.strip() == GREETING


def test_thinking_before_calls_goes_back_with_their_results(model: OpenAIChatModel) -> None:
    settings = OpenAIChatModelSettings(openai_reasoning_effort="high")
    answer = Agent(model, tools=[weather], model_settings=settings).run_sync(WEATHER_QUESTION)

    assert answer.output.strip() == WEATHER_ANSWER
