"""OpenAI's older way to call functions, with the official client: read as tools, answered in the older form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.engine.builders import ScriptedExecutor, make_engine
from tests.server.running import Running, serving
from tests.server.test_tools import ADD, ASK, NOW, SAID, ToolTokenizer

FUNCTIONS: Any = [ADD["function"], NOW["function"]]


@pytest.fixture(scope="module")
def prompts() -> list[Any]:
    """What the chat template was given: messages and tools."""
    return []


@pytest.fixture(scope="module")
def server(prompts: list[Any]) -> Iterator[Running]:
    """A model that says ``SAID``, with two calls, whatever it is asked."""

    def say(request_id: str, prompt: list[int]) -> list[int]:
        prompts.append(json.loads(bytes(prompt)))
        return list(SAID.encode())

    limits = {"max_model_len": 2048, "num_blocks": 600, "max_num_batched_tokens": 512}
    engine = make_engine(ScriptedExecutor(say), tokenizer=ToolTokenizer(), **limits)
    engine.compile_form = lambda form: form
    with serving(engine=engine) as running:
        yield running
        running.rest()


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with server.openai() as made:
        yield made


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": "bytes", "messages": ASK, "functions": FUNCTIONS, **fields})


def test_the_first_call_is_answered_in_the_older_form(client: openai.OpenAI, prompts: list[Any]) -> None:
    [choice] = ask(client).choices

    assert prompts[-1][1] == [ADD, NOW]
    assert choice.message.function_call.name == "add"
    assert json.loads(choice.message.function_call.arguments) == {"a": 1, "b": "x"}
    assert (choice.message.tool_calls, choice.message.content) == (None, "Let me see.")
    assert choice.finish_reason == "function_call"


def test_a_stream_has_the_same_call(client: openai.OpenAI) -> None:
    name = arguments = content = ""
    reasons = []
    for chunk in ask(client, stream=True):
        [choice] = chunk.choices
        assert choice.delta.tool_calls is None
        content += choice.delta.content or ""
        reasons.append(choice.finish_reason)
        if choice.delta.function_call is not None:
            name += choice.delta.function_call.name or ""
            arguments += choice.delta.function_call.arguments or ""

    assert (name, json.loads(arguments), content) == ("add", {"a": 1, "b": "x"}, "Let me see.")
    assert (reasons[-1], set(reasons[:-1])) == ("function_call", {None})


def test_a_call_and_its_result_are_sent_back_in_the_older_form(client: openai.OpenAI, prompts: list[Any]) -> None:
    message = ask(client).choices[0].message
    result = {"role": "function", "name": "add", "content": "2"}

    ask(client, messages=[*ASK, message.model_dump(), result])

    _, called, answered = prompts[-1][0]
    assert [call["function"] for call in called["tool_calls"]] == [{"name": "add", "arguments": {"a": 1, "b": "x"}}]
    assert (answered["role"], answered["name"], answered["content"]) == ("tool", "add", "2")


def test_without_a_choice_of_functions_nothing_is_looked_for(client: openai.OpenAI, prompts: list[Any]) -> None:
    [choice] = ask(client, function_call="none").choices

    assert (choice.message.content, choice.message.function_call, choice.finish_reason) == (SAID, None, "stop")
    assert prompts[-1][1] is None


def test_a_named_function_must_be_called_and_so_goes_with_no_other_form(client: openai.OpenAI) -> None:
    assert ask(client, function_call={"name": "now"}).choices[0].finish_reason == "function_call"
    with pytest.raises(openai.BadRequestError, match="forces a call") as caught:
        ask(client, function_call={"name": "now"}, response_format={"type": "json_object"})

    assert caught.value.param == "response_format"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"function_call": {"name": "sub"}}, "function_call", "none of the tools"),
        ({"functions": [], "function_call": {"name": "sub"}}, "function_call", "there are no functions"),
        ({"tools": [ADD]}, "functions", "mean the same"),
        ({"functions": [FUNCTIONS[0]] * 2}, "functions", "two functions named 'add'"),
        ({"function_call": "maybe"}, "function_call", "'none' or 'auto'"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_its_own_words(
    client: openai.OpenAI, fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        ask(client, **fields)

    assert caught.value.param == param


def test_choices_without_functions_have_no_effect(client: openai.OpenAI) -> None:
    for choice in ("none", "auto", None):
        answer = ask(client, functions=[], extra_body={"function_call": choice})
        assert answer.choices[0].message.content == SAID
