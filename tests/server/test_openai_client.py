"""The official client, as its users use it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest

from headway.core.plan import StepPlan
from tests.engine.builders import ScriptedExecutor, echo
from tests.server.running import Gate, Running, serving

HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
RENDERED = "<user>hello\n<assistant>"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving() as running:
        yield running
        running.rest()


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with server.openai() as made:
        yield made


def test_models(client: openai.OpenAI) -> None:
    [model] = client.models.list().data

    assert model.id == "bytes"
    assert client.models.retrieve("bytes").owned_by == "headway"
    with pytest.raises(openai.NotFoundError, match="there is no model 'other'"):
        client.models.retrieve("other")


def test_completions(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="bytes", prompt="ab", max_tokens=5, logprobs=1)
    stream = client.completions.create(model="bytes", prompt="ab", max_tokens=5, stream=True)

    assert whole.choices[0].text == "".join(chunk.choices[0].text for chunk in stream) == "ababa"
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.tokens == list("ababa")
    assert whole.usage is not None
    assert whole.usage.total_tokens == 7


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="bytes", messages=HELLO, max_completion_tokens=len(RENDERED), logprobs=True, top_logprobs=0
    )
    stream = client.chat.completions.create(
        model="bytes", messages=HELLO, max_tokens=30, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)

    assert answer.choices[0].message.content == RENDERED
    assert answer.choices[0].logprobs is not None
    assert "".join(entry.token for entry in answer.choices[0].logprobs.content or []) == RENDERED
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.startswith(RENDERED)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 30


def test_the_streaming_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="bytes", messages=HELLO, stop=">") as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]

    assert "".join(deltas) == "<user"
    assert stream.get_final_completion().choices[0].finish_reason == "stop"


def test_errors_are_the_clients_own(client: openai.OpenAI, server: Running) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="bytes", prompt="ab", n=1000)
    assert (caught.value.param, caught.value.code) == ("n", "limit_exceeded")
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="other", prompt="ab")
    assert missing.value.code == "model_not_found"


def test_our_own_fields_go_into_the_extra_body(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="bytes", prompt="ab", extra_body={"stop_token_ids": [98], "cache_salt": "x", "timeout": 30}
    )

    assert answer.choices[0].text == "a"


def test_an_error_within_a_stream_is_raised_while_it_is_read() -> None:
    gate = Gate(allowed=1)

    def during(plan: StepPlan) -> None:
        gate(plan)
        if plan.step == 2:
            raise ValueError("out of memory")

    with serving(ScriptedExecutor(echo, during=during)) as server, server.openai() as client:
        stream = client.completions.create(model="bytes", prompt="ab", max_tokens=9, stream=True)
        assert next(stream).choices[0].text == "a"
        gate.open()
        with pytest.raises(openai.APIError, match="out of memory"):
            list(stream)
        assert client.completions.create(model="bytes", prompt="ab", max_tokens=2).choices[0].text == "ab"
        server.rest()


def test_leaving_a_stream_early_ends_the_request(server: Running, client: openai.OpenAI) -> None:
    with client.completions.create(model="bytes", prompt="ab", max_tokens=120, stream=True) as stream:
        next(iter(stream))
    server.rest()


def test_many_at_once_through_the_asynchronous_client(server: Running) -> None:
    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

            async def one(place: int) -> str:
                prompt = f"{place:02d}"
                if place % 2:
                    answer = await client.completions.create(model="bytes", prompt=prompt, max_tokens=6)
                    return answer.choices[0].text
                stream = await client.completions.create(model="bytes", prompt=prompt, max_tokens=6, stream=True)
                return "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(*(one(place) for place in range(64)))

    assert asyncio.run(run()) == [f"{place:02d}" * 3 for place in range(64)]
    server.rest()
