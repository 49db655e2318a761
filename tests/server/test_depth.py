"""One limit for everything that nests: any depth is served or told the limit, nothing in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headway.build import build_engine
from headway.config import ConfigError, EngineOptions, Structured
from headway.config.depth import MAX_JSON_DEPTH, check_depth, load_json, too_deep
from headway.models.tiny import make_tiny
from tests.server.running import Running, serving
from tests.server.test_tools import TEMPLATE

DEPTHS = (1, 10, 40, MAX_JSON_DEPTH, MAX_JSON_DEPTH + 1, 150, 255, 300, 500, 900, 1000, 1023, 1024, 2000, 5000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """It has a compiler of forms and a template that knows tools, so that whatever recurses is reached."""
    folder = make_tiny(tmp_path_factory.mktemp("depth"))
    engine = build_engine(EngineOptions(model=str(folder), num_blocks=400, chat_template=TEMPLATE))
    with serving(engine=engine) as running:
        yield running
        running.rest()


def nested(depth: int, open_: str, close: str, core: str) -> str:
    """JSON text, made without recursion."""
    return open_ * depth + core + close * depth


def objects(depth: int) -> str:
    return nested(depth, '{"a": ', "}", "1")


def lists(depth: int) -> str:
    return nested(depth, "[", "]", "1")


def object_schemas(depth: int) -> str:
    inner = '{"type": "string"}'
    return nested(depth // 2, '{"type": "object", "properties": {"a": ', "}}", inner)


def array_schemas(depth: int) -> str:
    return nested(depth, '{"type": "array", "items": ', "}", '{"type": "string"}')


def array_schemas_in_an_object(depth: int) -> str:
    """The same as a property, since arguments are an object."""
    if depth < 3:
        return '{"type": "object"}'
    return '{"type": "object", "properties": {"x": ' + array_schemas(depth - 2) + "}}"


def any_of_schemas(depth: int) -> str:
    return nested(depth // 2, '{"anyOf": [', "]}", '{"type": "string"}')


def as_text(make: Callable[[int], str]) -> Callable[[int], str]:
    return lambda depth: json.dumps(make(depth))


CHAT = '"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2'
TOOL = '"type": "function", "function": {"name": "f", "parameters": PLACE}'
PLACES: dict[str, tuple[str, str, Callable[[int], str]]] = {
    "the whole body": ("/v1/completions", "PLACE", lists),
    "an unknown field": ("/v1/completions", '{"prompt": "a", "x": PLACE}', objects),
    "a prompt": ("/v1/completions", '{"prompt": PLACE}', lists),
    "a logit bias": ("/v1/completions", '{"prompt": "a", "logit_bias": PLACE}', objects),
    "metadata": ("/v1/chat/completions", "{" + CHAT + ', "metadata": PLACE}', objects),
    "template variables": ("/v1/chat/completions", "{" + CHAT + ', "chat_template_kwargs": PLACE}', objects),
    "messages": ("/v1/chat/completions", '{"messages": PLACE}', lists),
    "a message's content": ("/v1/chat/completions", '{"messages": [{"role": "user", "content": PLACE}]}', lists),
    "a tool": ("/v1/chat/completions", "{" + CHAT + ', "tools": [{' + TOOL + "}]}", object_schemas),
    "a forced tool": (
        "/v1/chat/completions",
        "{" + CHAT + ', "tool_choice": "required", "tools": [{' + TOOL + "}]}",
        array_schemas_in_an_object,
    ),
    "a schema": (
        "/v1/chat/completions",
        "{" + CHAT + ', "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": PLACE}}}',
        object_schemas,
    ),
    "a schema of alternatives": (
        "/v1/completions",
        '{"prompt": "a", "max_tokens": 2, "guided_json": PLACE}',
        any_of_schemas,
    ),
    "a schema as text": (
        "/v1/completions",
        '{"prompt": "a", "max_tokens": 2, "structured_outputs": {"json": PLACE}}',
        as_text(array_schemas),
    ),
    "arguments of a call": (
        "/v1/chat/completions",
        '{"max_tokens": 2, "messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function",'
        ' "function": {"name": "f", "arguments": PLACE}}]}, {"role": "tool", "tool_call_id": "1", "content": "x"}]}',
        as_text(objects),
    ),
    "a text to tokenise": ("/tokenize", '{"prompt": PLACE}', lists),
}

FINE = ("metadata", "template variables", *(place for place in PLACES if "tool" in place or "a schema" in place))
"""Where what nests is right, so that it is served as long as it is not too deep."""


@pytest.mark.parametrize("place", PLACES)
def test_any_depth_is_served_or_refused(server: Running, place: str) -> None:
    path, body, make = PLACES[place]
    for depth in DEPTHS:
        content = body.replace("PLACE", make(depth))
        answer = server.http.post(path, content=content, headers={"Content-Type": "application/json"})

        if place == "arguments of a call":  # text that a model may have written: never refused for what is in it
            code = answer.json()["error"]["code"] if answer.status_code != 200 else "context_length_exceeded"
            assert code == "context_length_exceeded", (depth, answer.text[:300])
        elif depth > MAX_JSON_DEPTH:
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "nested_too_deeply"), (depth, error)
            assert f"{MAX_JSON_DEPTH} deep" in error["message"]
        elif depth <= 40 and place in FINE:
            assert answer.status_code == 200, (depth, answer.text[:300])
        else:
            assert answer.status_code in (200, 400), (depth, answer.text[:300])
    assert server.complete("ab", max_tokens=2).status_code == 200


def chain(length: int) -> dict[str, Any]:
    """A flat schema whose references lead from one to the next, the last to the first."""
    names = [f"n{index}" for index in range(length)]
    links = {
        name: {"type": "object", "properties": {"next": {"$ref": f"#/$defs/{after}"}}}
        for name, after in zip(names, [*names[1:], names[0]], strict=True)
    }
    return {"$ref": "#/$defs/n0", "$defs": links}


def bare_chain(length: int) -> dict[str, Any]:
    links = {f"n{index}": {"$ref": f"#/$defs/n{index + 1}"} for index in range(length)}
    return {"$ref": "#/$defs/n0", "$defs": {**links, f"n{length}": {"type": "string"}}}


@pytest.mark.parametrize("make", [chain, bare_chain])
def test_long_chains_of_references_end_no_engine(server: Running, make: Callable[[int], dict[str, Any]]) -> None:
    for length in (1, 50, 500, 1000):
        answer = server.complete("a", guided_json=make(length), max_tokens=2)
        if answer.status_code != 200:  # a chain is not deep, only long
            assert answer.json()["error"]["code"] == "limit_exceeded", (length, answer.text[:300])
    assert server.complete("ab", max_tokens=2).status_code == 200


def test_offline_forms_have_the_same_limit() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for depth in range(2, 1200):
        schema = {"type": "array", "items": schema}
        if depth <= MAX_JSON_DEPTH and depth % 20 == 0:
            Structured.json(schema)
        if depth in (MAX_JSON_DEPTH + 1, 500, 1199):
            with pytest.raises(ConfigError, match=f"more than {MAX_JSON_DEPTH} deep"):
                Structured.json(schema)
    for depth in (MAX_JSON_DEPTH + 1, 900, 20_000):
        with pytest.raises(ConfigError, match=f"more than {MAX_JSON_DEPTH} deep"):
            Structured.json(array_schemas(depth))


def test_forms_made_by_hand_have_it_when_they_are_compiled(server: Running) -> None:
    for depth in (MAX_JSON_DEPTH + 1, 500, 900, 20_000):
        with pytest.raises(ConfigError, match=f"more than {MAX_JSON_DEPTH} deep"):
            server.engine.compile_form(Structured("json", array_schemas(depth)))


def test_depth_is_counted_in_lists_and_objects() -> None:
    assert not too_deep("text", 0) and not too_deep([], 1) and too_deep([], 0)
    assert not too_deep({"a": [1, (2,)]}, 3) and too_deep({"a": [1, (2,)]}, 2)
    check_depth("field", load_json("field", lists(MAX_JSON_DEPTH)))
    with pytest.raises(ConfigError, match="field"):
        load_json("field", lists(MAX_JSON_DEPTH + 1))
    with pytest.raises(ValueError, match="Expecting"):
        load_json("field", "[")
