"""Whatever the server has said goes back to it unchanged, as the official client hands it out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage

from headway.server.tools.history import MAX_VALUES, arguments_for_template
from tests.engine.builders import ScriptedExecutor
from tests.server.running import Running, serving
from tests.server.templates import ARGUMENTS_AS_JSON, ARGUMENTS_ONE_BY_ONE, TemplateTokenizer

TOOLS: list[Any] = [{"type": "function", "function": {"name": name}} for name in ("add", "look_up")]
ASK = {"role": "user", "content": "?"}
LIMITS: dict[str, Any] = {"max_model_len": 8192, "num_blocks": 2100, "max_num_batched_tokens": 8192}


class Model:
    """Says what it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.says: list[int] = []
        self.prompt = ""

    def __call__(self, request_id: str, prompt: list[int]) -> list[int]:
        self.prompt = bytes(token for token in prompt if token < 256).decode()
        return self.says


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


@pytest.fixture(scope="module", params=[ARGUMENTS_AS_JSON, ARGUMENTS_ONE_BY_ONE], ids=["JSON", "one by one"])
def server(request: pytest.FixtureRequest, model: Model) -> Iterator[Running]:
    with serving(ScriptedExecutor(model), tokenizer=TemplateTokenizer(request.param), **LIMITS) as running:
        yield running
        running.rest()


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with server.openai() as made:
        yield made


def whole(client: openai.OpenAI, **fields: Any) -> ChatCompletionMessage:
    return client.chat.completions.create(model="bytes", tools=TOOLS, **fields).choices[0].message


def streamed(client: openai.OpenAI, **fields: Any) -> ChatCompletionMessage:
    with client.chat.completions.stream(model="bytes", tools=TOOLS, **fields) as stream:
        try:
            return stream.get_final_completion().choices[0].message
        except openai.LengthFinishReasonError as error:  # the client's way to say that max_tokens was reached
            return error.completion.choices[0].message


PIECES = [
    "<tool_call>", "</tool_call>", '{"name": "add", "arguments": ', '{"name": "look_up", "parameters": {"q": "', "{}",
    '{"a": 1}', '{"a": ', '"\\ud800"', '{"a": "\\ud800"}', "[1]", "null", "true", '"x"', '"{\\"a\\": 1}"', "1" * 4400,
    '{"a": ' + "1" * 4400 + "}", '{"a": ' + "[" * 300, '{"a"', '{"": 2}', "NaN}", "\\", "}", '"', "é", "\n", "words",
]  # fmt: skip
OUTPUTS = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(OUTPUTS, st.integers(1, 60), st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_a_conversation_goes_on_whatever_the_model_says(
    server: Running, client: openai.OpenAI, model: Model, turns: list[tuple[str, int, bool, bool]]
) -> None:
    messages: list[Any] = [ASK]
    for output, max_tokens, streams, exclude_none in turns:
        model.says = list(output.encode())
        said = (streamed if streams else whole)(client, messages=messages, max_tokens=max_tokens)
        messages.append(said.model_dump(exclude_none=exclude_none))
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": "done"} for call in said.tool_calls or ()
        ] or [ASK]
    whole(client, messages=messages, max_tokens=1)


@pytest.mark.parametrize("piece", [*PIECES, "{", '{"a": "b', "nonsense", ""], ids=lambda piece: piece[:20])
def test_every_argument_text_is_taken_back(client: openai.OpenAI, model: Model, piece: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": piece}}
    said = ChatCompletionMessage.model_validate({"role": "assistant", "content": None, "tool_calls": [call]})
    result = {"role": "tool", "tool_call_id": "1", "content": "done"}

    whole(client, messages=[ASK, said.model_dump(), result], max_tokens=1)

    assert "<tool_call>" in model.prompt


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        (None, {}),
        (" null ", {}),
        ("{", {}),
        ('{"a": 1, "b": "Os', {"a": 1, "b": "Os"}),
        ('{"a": [1, {"b": tr', {"a": [1, {}]}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ("[1]", {"malformed": "[1]"}),
        ("true", {"malformed": "true"}),
        ('"text"', {"malformed": '"text"'}),
        ("{'a': 1}", {"malformed": "{'a': 1}"}),
        ('{"a": "\\ud800"}', {"malformed": '{"a": "\\ud800"}'}),
    ],
)
def test_templates_get_an_object(text: str | None, expected: dict[str, Any]) -> None:
    assert arguments_for_template(text) == expected


def test_arguments_of_more_values_than_any_model_writes_are_not_read() -> None:
    for num_values, is_read in ((MAX_VALUES, True), (MAX_VALUES + 1, False)):
        value = {"a": [1] * num_values}
        text = json.dumps(value)
        assert arguments_for_template(text) == (value if is_read else {"malformed": text})


EVERYTHING: dict[str, Any] = {
    "role": "assistant",
    "content": "Yes.",
    "refusal": None,
    "annotations": [],
    "audio": None,
    "function_call": None,
    "tool_calls": None,
    "reasoning_content": "Hm.",
    "reasoning": "Hm.",
    "something_new": {"a": 1},
}
RICH = {
    **EVERYTHING,
    "annotations": [
        {"type": "url_citation", "url_citation": {"start_index": 0, "end_index": 1, "title": "t", "url": "u"}}
    ],
    "audio": {"id": "a", "data": "", "expires_at": 1, "transcript": "t"},
    "function_call": {"name": "add", "arguments": "{}"},
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
}


@pytest.mark.parametrize("exclude_none", [False, True])
@pytest.mark.parametrize("message", [EVERYTHING, RICH], ids=["empty", "rich"])
def test_messages_of_the_official_client_go_back_unchanged(
    client: openai.OpenAI, model: Model, message: dict[str, Any], exclude_none: bool
) -> None:
    said = ChatCompletionMessage.model_validate(message).model_dump(exclude_none=exclude_none)

    whole(client, messages=[ASK, said, ASK], max_tokens=1)
    assert "assistant: Yes." in model.prompt


def test_the_official_message_has_no_field_that_is_not_tried_here() -> None:
    assert set(ChatCompletionMessage.model_fields) <= set(EVERYTHING)


def test_a_refusal_stands_in_place_of_content(client: openai.OpenAI, model: Model) -> None:
    parts = [{"type": "text", "text": "Well, "}, {"type": "refusal", "refusal": "no."}]
    refused = {"role": "assistant", "content": None, "refusal": "I will not."}

    whole(client, messages=[ASK, {"role": "assistant", "content": parts}, ASK, refused, ASK], max_tokens=1)

    assert "assistant: Well, no.\n" in model.prompt
    assert "assistant: I will not.\n" in model.prompt


PARTS: list[dict[str, Any]] = [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
    {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
    {"type": "file", "file": {"file_id": "f"}},
    {"type": "video_url", "video_url": {"url": "u"}},
    {"type": "audio_url", "audio_url": {"url": "u"}},
    {"type": "something_new", "something_new": 1},
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part["type"])
def test_parts_that_are_no_text_are_refused_by_their_place(client: openai.OpenAI, part: dict[str, Any]) -> None:
    content: Any = [{"type": "text", "text": "What is this?"}, part]
    with pytest.raises(openai.BadRequestError) as caught:
        whole(client, messages=[ASK, ASK, {"role": "user", "content": content}])

    error: Any = caught.value.body
    assert error["message"].startswith("messages[2].content[1]: this model reads text only")
    assert repr(part["type"]) in error["message"]
    assert (error["param"], error["code"]) == ("messages[2].content[1].type", "unsupported")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "text"}, "must have the field text"),
        ({"type": "refusal", "text": "x"}, "must have the field refusal"),
        ({"text": "x"}, "required"),
        ({"type": "text", "texte": "x", "text": "x"}, "did you mean 'text'"),
    ],
    ids=json.dumps,
)
def test_a_part_that_lacks_its_text_is_refused(client: openai.OpenAI, part: dict[str, Any], message: str) -> None:
    messages: Any = [{"role": "user", "content": [part]}]
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        whole(client, messages=messages)

    assert str(caught.value.param).startswith("messages[0].content[0]")
