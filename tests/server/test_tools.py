"""Tool calls over HTTP, with the official client: what the model writes, what must be called, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from headway.build import build_engine
from headway.config import EngineOptions
from headway.models.tiny import make_tiny
from tests.engine.builders import ByteTokenizer, ScriptedExecutor
from tests.server.running import Running, serving

TEMPLATE = (
    "{% if tools %}Tools:{% for tool in tools %} {{ tool | tojson }}{% endfor %}\nWrite <tool_call>.\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
ASK: list[Any] = [{"role": "user", "content": "?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
ADD: Any = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS}}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
NOW: Any = {"type": "function", "function": {"name": "now", "parameters": NOTHING}}
SAID = (
    'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "x"}}\n</tool_call>\n'
    '<tool_call>{"name": "now"}</tool_call>'
)


class ToolTokenizer(ByteTokenizer):
    """Its template knows tools, and shows them."""

    chat_template = TEMPLATE

    def apply_chat_template(self, messages: Any, add_generation_prompt: bool = True, tools: Any = None) -> str:
        return json.dumps([messages, tools])


@pytest.fixture(scope="module")
def prompts() -> list[Any]:
    """What the chat template was given: messages and tools."""
    return []


@pytest.fixture(scope="module")
def client(prompts: list[Any]) -> Iterator[openai.OpenAI]:
    """A model that says ``SAID`` whatever it is asked."""

    def say(request_id: str, prompt: list[int]) -> list[int]:
        prompts.append(json.loads(bytes(prompt)))
        return list(SAID.encode())

    limits = {"max_model_len": 2048, "num_blocks": 600, "max_num_batched_tokens": 512}
    with (
        serving(ScriptedExecutor(say), tokenizer=ToolTokenizer(), options={"max_tools": 3}, **limits) as server,
        server.openai() as made,
    ):
        yield made
        server.rest()


def allowed(mode: str, *names: str) -> Any:
    """A choice of tools."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": "bytes", "messages": ASK, "tools": [ADD, NOW], **fields})


def test_calls_are_told_apart_from_content(client: openai.OpenAI, prompts: list[Any]) -> None:
    [choice] = ask(client).choices

    assert choice.message.content == "Let me see."
    assert [call.function.name for call in choice.message.tool_calls] == ["add", "now"]
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [{"a": 1, "b": "x"}, {}]
    assert choice.finish_reason == "tool_calls"
    assert prompts[-1][1] == [ADD, NOW]


def test_the_model_is_shown_the_allowed_tools_and_calls_of_others_are_text(
    client: openai.OpenAI, prompts: list[Any]
) -> None:
    [choice] = ask(client, tool_choice=allowed("auto", "now")).choices

    assert prompts[-1][1] == [NOW]
    assert [call.function.name for call in choice.message.tool_calls] == ["now"]
    assert '"name": "add"' in choice.message.content


def test_a_stream_has_the_same_calls(client: openai.OpenAI) -> None:
    content, calls, reasons = "", {}, []
    for chunk in ask(client, stream=True):
        [choice] = chunk.choices
        content += choice.delta.content or ""
        reasons.append(choice.finish_reason)
        for call in choice.delta.tool_calls or ():
            known = calls.setdefault(call.index, {"id": call.id, "name": call.function.name, "arguments": ""})
            assert call.id in (None, known["id"])
            known["arguments"] += call.function.arguments
    assert content == "Let me see."
    assert [call["name"] for call in calls.values()] == ["add", "now"]
    assert [call["arguments"] for call in calls.values()] == ['{"a": 1, "b": "x"}', "{}"]
    assert reasons[-1] == "tool_calls"
    assert set(reasons[:-1]) == {None}


def test_the_clients_own_stream_helper_understands_it(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="bytes", messages=ASK, tools=[ADD, NOW]) as stream:
        message = stream.get_final_completion().choices[0].message

    assert [call.function.arguments for call in message.tool_calls or ()] == ['{"a": 1, "b": "x"}', "{}"]


def test_log_probabilities_cover_all_tokens_even_if_their_text_is_a_call(client: openai.OpenAI) -> None:
    whole = ask(client, logprobs=True).choices[0].logprobs.content
    stream = ask(client, logprobs=True, stream=True)
    joined = [entry for chunk in stream for part in [chunk.choices[0].logprobs] if part for entry in part.content]

    assert "".join(entry.token for entry in joined) == SAID + "</s>"
    assert joined == whole


def test_a_call_that_is_cut_ends_with_the_length(client: openai.OpenAI) -> None:
    [choice] = ask(client, max_tokens=SAID.index("1,")).choices

    assert choice.finish_reason == "length"
    assert choice.message.tool_calls[0].function.arguments == '{"a": '


def test_without_a_choice_of_tools_nothing_is_looked_for(client: openai.OpenAI, prompts: list[Any]) -> None:
    [choice] = ask(client, tool_choice="none").choices

    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (SAID, None, "stop")
    assert prompts[-1][1] is None


def test_results_of_tools_can_be_sent_back(client: openai.OpenAI, prompts: list[Any]) -> None:
    message = ask(client).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "5"} for call in message.tool_calls]

    ask(client, messages=[*ASK, message.model_dump(), *results])

    seen = prompts[-1][0]
    assert [part["role"] for part in seen] == ["user", "assistant", "tool", "tool"]
    assert [call["function"] for call in seen[1]["tool_calls"]] == [
        {"name": "add", "arguments": {"a": 1, "b": "x"}},
        {"name": "now", "arguments": {}},
    ]
    assert seen[2]["tool_call_id"] == message.tool_calls[0].id


NAME_ADD = {"type": "function", "function": {"name": "add"}}
ALLOW_ADD = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAME_ADD]}}


def in_words(value: Any) -> str:
    """A name without an address in it, which differs from process to process."""
    return "omitted" if value is openai.omit else repr(value)


@pytest.mark.parametrize("tools", [[], None, openai.omit], ids=in_words)
@pytest.mark.parametrize("choice", ["auto", "none", None, openai.omit], ids=in_words)
@pytest.mark.parametrize("parallel", [True, False, None, openai.omit], ids=in_words)
def test_without_tools_what_asks_for_no_call_has_no_effect(
    client: openai.OpenAI, prompts: list[Any], tools: Any, choice: Any, parallel: Any
) -> None:
    [answer] = ask(client, tools=tools, tool_choice=choice, parallel_tool_calls=parallel).choices

    assert (answer.message.content, answer.message.tool_calls, answer.finish_reason) == (SAID, None, "stop")
    assert prompts[-1][1] is None


@pytest.mark.parametrize("tools", [[], None, openai.omit], ids=in_words)
@pytest.mark.parametrize(
    ("choice", "message"),
    [("required", "no tools"), (NAME_ADD, "'add', which is none of"), (ALLOW_ADD, "'add', which is none of")],
    ids=str,
)
def test_without_tools_what_asks_for_a_call_is_refused(
    client: openai.OpenAI, tools: Any, choice: Any, message: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        ask(client, tools=tools, tool_choice=choice)

    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice", "none of the tools"),
        ({"tool_choice": allowed("auto", "now", "sub")}, "tool_choice", "'sub', which is none of the tools"),
        ({"tool_choice": allowed("required")}, "tool_choice", "allows no tool"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "must have the field allowed_tools"),
        ({"tools": [ADD, ADD]}, "tools", "two functions named 'add'"),
        ({"tools": [ADD, NOW, ADD, ADD]}, "tools", "at most 3 are allowed"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "pattern"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type", "function"),
        ({"tool_choice": "maybe"}, "tool_choice", "'none', 'auto' or 'required'"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format", "forces a call"),
        ({"extra_body": {"guided_regex": "a"}}, "guided_regex", "only if it is JSON"),
        ({"tool_choice": "required"}, "tools", "keeps outputs to no form"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(client: openai.OpenAI, fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        ask(client, **fields)

    assert caught.value.param == param


@pytest.mark.parametrize(
    ("template", "message"),
    [("{{ messages }}", "chat template knows no tools"), ("{{ tools }}", "not known how this model writes tool calls")],
)
def test_models_that_cannot_call_say_so(template: str, message: str) -> None:
    tokenizer = ByteTokenizer()
    tokenizer.chat_template = template
    with serving(tokenizer=tokenizer) as server, server.openai() as made:
        with pytest.raises(openai.BadRequestError, match=message):
            ask(made)
        assert ask(made, tool_choice="none", max_tokens=1).choices[0].message.tool_calls is None


# --- calls that are forced: a real model, with random weights -----------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = make_tiny(tmp_path_factory.mktemp("tools"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    engine = build_engine(EngineOptions(model=str(Path(folder)), num_blocks=400))
    with serving(engine=engine, options={"served_model_name": ("bytes",)}) as server:
        yield server
        server.rest()


def fits(call: Any) -> bool:
    arguments = json.loads(call.function.arguments)
    if call.function.name == "now":
        return arguments == {}
    return list(arguments) == ["a", "b"] and 0 <= arguments["a"] <= 99 and arguments["b"] in ("x", "y")


@pytest.mark.parametrize("seed", range(3))
def test_a_required_call_is_made_whatever_the_model_would_say(tiny: Running, seed: int) -> None:
    with tiny.openai() as client:
        [choice] = ask(client, tool_choice="required", parallel_tool_calls=False, seed=seed).choices

    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    [call] = choice.message.tool_calls
    assert fits(call)


def test_several_calls_may_be_required(tiny: Running) -> None:
    with tiny.openai() as client:
        choices = ask(client, tool_choice="required", n=4, seed=1, max_tokens=300).choices

    assert all(fits(call) for choice in choices for call in choice.message.tool_calls[:-1])
    assert max(len(choice.message.tool_calls) for choice in choices) > 1


def test_a_named_call_is_made(tiny: Running) -> None:
    with tiny.openai() as client:
        stream = ask(client, tool_choice={"type": "function", "function": {"name": "add"}}, temperature=0, stream=True)
        calls = [call for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]

    assert [call.function.name for call in calls if call.id] == ["add"]
    assert json.loads("".join(call.function.arguments for call in calls))["b"] in ("x", "y")


def test_a_call_of_an_allowed_tool_may_be_required(tiny: Running) -> None:
    with tiny.openai() as client:
        choices = ask(client, tool_choice=allowed("required", "now"), n=4, seed=1, max_tokens=300).choices

    assert {call.function.name for choice in choices for call in choice.message.tool_calls} == {"now"}


def test_an_answer_of_a_form_may_stand_instead_of_calls(tiny: Running) -> None:
    schema = {
        "type": "object",
        "properties": {"z": {"type": "boolean"}},
        "required": ["z"],
        "additionalProperties": False,
    }
    response_format: Any = {"type": "json_schema", "json_schema": {"name": "z", "schema": schema}}
    with tiny.openai() as client:
        answer = ask(client, response_format=response_format, n=16, seed=3, parallel_tool_calls=False)

    called = [choice for choice in answer.choices if choice.message.tool_calls]
    answered = [choice for choice in answer.choices if not choice.message.tool_calls]
    assert called and answered
    assert all(fits(choice.message.tool_calls[0]) for choice in called)
    assert all(list(json.loads(choice.message.content)) == ["z"] for choice in answered)


def test_parameters_that_are_no_schema_are_refused(tiny: Running) -> None:
    broken = {"type": "function", "function": {"name": "f", "parameters": {"type": "objekt"}}}
    with tiny.openai() as client, pytest.raises(openai.BadRequestError, match="Invalid type: objekt") as caught:
        ask(client, tools=[broken], tool_choice="required")

    assert caught.value.param == "tools"


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_what_of_parameters_is_not_kept_to_is_told_or_refused_if_they_are_strict(tiny: Running, choice: str) -> None:
    unique = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True, "maxItems": 2}}}
    tools = [NOW, {"type": "function", "function": {"name": "f", "parameters": unique}}]
    body = {"messages": ASK, "tools": tools, "tool_choice": choice, "max_tokens": 3}
    place = "tools[1].function.parameters.properties.a.uniqueItems"

    warning = tiny.post("/v1/chat/completions", body).headers.get("x-headway-warning")
    tools[1]["function"]["strict"] = True
    strict = tiny.post("/v1/chat/completions", body)

    if choice == "auto":  # nothing is kept to
        assert (warning, strict.status_code) == (None, 200)
    else:
        assert warning == f"{place} is not enforced"
        assert (strict.status_code, strict.json()["error"]["param"]) == (400, place)
