"""Forced calls: their arguments are objects whatever the schema says, their marks are the model's own tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.server.running import Running
from tests.server.test_tools import ADD, ASK, NOW, TEMPLATE, fits
from tests.server.tiny_chat import VOCAB, tiny_chat


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The marks of calls are text."""
    with tiny_chat(tmp_path_factory.mktemp("plain"), TEMPLATE) as server:
        yield server


@pytest.fixture(scope="module", params=["special", "added"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The marks of calls are special tokens, or tokens that are not special."""
    kinds = {request.param: ["<tool_call>", "</tool_call>"]}
    with tiny_chat(tmp_path_factory.mktemp("tiny"), TEMPLATE, **kinds) as server:
        yield server


INTEGER = {"type": "integer", "minimum": 0, "maximum": 9}
A_OR_B = {
    "anyOf": [
        {"type": "string"},
        {"properties": {"a": INTEGER}, "required": ["a"], "additionalProperties": False},
        {"type": "object", "properties": {"b": INTEGER}, "required": ["b"], "additionalProperties": False},
        {"type": "null"},
    ]
}
CLOSED = {"properties": {"a": INTEGER}, "required": ["a"], "additionalProperties": False}
SCHEMAS: dict[str, Any] = {
    "nothing": ...,
    "null": None,
    "true": True,
    "empty": {},
    "no type": CLOSED,
    "object": {"type": "object", **CLOSED},
    "types": {"type": ["null", "object", "string"], **CLOSED},
    "anyOf": A_OR_B,
    "allOf": {"allOf": [CLOSED, {"description": "x"}]},
    "$ref": {"$ref": "#/$defs/A", "$defs": {"A": CLOSED}},
    "$ref to $ref": {"$ref": "#/$defs/B", "$defs": {"A": CLOSED, "B": {"$ref": "#/$defs/A"}}},
    "definitions": {"$ref": "#/definitions/A", "definitions": {"A": A_OR_B}},
    "enum": {"enum": [1, {"a": 1}, "x", None]},
    "const": {"const": {"a": 1}},
    "annotations": {"title": "x", "description": "y"},
}


@pytest.mark.parametrize("strict", [None, True])
@pytest.mark.parametrize("name", SCHEMAS)
def test_arguments_are_an_object_whatever_the_schema(plain: Running, name: str, strict: bool | None) -> None:
    function = {"name": "f", "parameters": SCHEMAS[name], "strict": strict}
    if SCHEMAS[name] is ...:
        del function["parameters"]
    tool = {"type": "function", "function": function}
    body = {
        "messages": ASK,
        "tools": [tool],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "n": 3,
        "seed": 2,
        "max_tokens": 60,
    }
    answer = plain.post("/v1/chat/completions", body)

    assert answer.status_code == 200, answer.text
    for choice in answer.json()["choices"]:
        [call] = choice["message"]["tool_calls"]
        arguments = call["function"]["arguments"]
        assert arguments.startswith("{")
        if choice["finish_reason"] == "tool_calls":
            assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"type": "string"}, 'of type "string"; arguments are always an object'),
        ({"type": ["string", "null"]}, "arguments are always an object"),
        ({"type": "objekt"}, "objekt"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "tools cannot be compiled"),
        (False, "parameters"),
        ([], "parameters"),
    ],
    ids=str,
)
def test_schemas_that_no_object_fits_are_refused(plain: Running, parameters: Any, message: str) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    answer = plain.post("/v1/chat/completions", {"messages": ASK, "tools": [tool], "tool_choice": "required"})

    assert answer.status_code == 400
    error = answer.json()["error"]
    assert message in error["message"]
    assert error["param"] in ("tools", "tools[0].function.parameters")


def test_calls_are_found_whatever_their_marks_are(tiny: Running) -> None:
    with tiny.openai() as client:
        fields: Any = {"model": "bytes", "messages": ASK, "tools": [ADD, NOW], "tool_choice": "required", "n": 4}
        whole = client.chat.completions.create(**fields, seed=1, max_tokens=200)
        with client.chat.completions.stream(**fields, seed=1, max_tokens=200) as stream:
            try:
                streamed = stream.get_final_completion()
            except openai.LengthFinishReasonError as error:
                streamed = error.completion  # type: ignore[assignment]

    assert max(len(choice.message.tool_calls or ()) for choice in whole.choices) > 1
    for choice, other in zip(whole.choices, streamed.choices, strict=True):
        calls = [call.function for call in choice.message.tool_calls or ()]
        assert not choice.message.content or choice.finish_reason == "length"  # cut before a name was known
        assert [(call.name, call.arguments) for call in calls] == [
            (call.function.name, call.function.arguments) for call in other.message.tool_calls or ()
        ]
        assert choice.finish_reason == other.finish_reason
        assert all(fits(call) for call in (choice.message.tool_calls or [])[:-1])


def test_marks_that_are_special_tokens_are_written_as_such(tiny: Running) -> None:
    body = {"messages": ASK, "tools": [NOW], "tool_choice": "required", "return_token_ids": True, "seed": 1}
    ids = tiny.post("/v1/chat/completions", {**body, "parallel_tool_calls": False}).json()["choices"][0]["token_ids"]
    tokenizer = tiny.engine.tokenizer

    assert tokenizer is not None
    assert "<tool_call>" in tokenizer.decode(ids, skip_special_tokens=False)
    if "<tool_call>" in {tokenizer.id_to_bytes(token).decode() for token in tokenizer.special_token_ids}:
        assert [token for token in ids if token >= VOCAB] == [VOCAB, VOCAB + 1]
