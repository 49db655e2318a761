"""Every field that a client may send is in the table, and does what it says; the official client's are walked."""

from __future__ import annotations

import json
import logging
import typing
from collections.abc import Iterator
from typing import Any, Required

import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params
from typing_extensions import get_type_hints, is_typeddict

from headway.server.protocol import chat, completions, forms, generation, tools
from headway.server.protocol.base import Body
from headway.server.protocol.fields import OBJECTS, Use, fields_of, note_taken
from tests.engine.builders import ByteTokenizer, ScriptedExecutor, echo, make_engine
from tests.server.running import Running, serving

HELLO = [{"role": "user", "content": "hello"}]
FUNCTION = {"name": "x", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
TOOLS = [{"type": "function", "function": FUNCTION}]
PATHS = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": HELLO, "max_tokens": 3},
    "completion": {"prompt": "ab", "max_tokens": 3},
}
OFFICIAL = {
    "chat": [chat_params.CompletionCreateParamsNonStreaming, chat_params.CompletionCreateParamsStreaming],
    "completion": [
        completion_params.CompletionCreateParamsNonStreaming,
        completion_params.CompletionCreateParamsStreaming,
    ],
}
COMPANIONS: dict[str, dict[str, Any]] = {
    "tool_choice": {"tools": TOOLS},
    "parallel_tool_calls": {"tools": TOOLS},
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    "max_completion_tokens": {"max_tokens": None},
    "function_call": {"functions": [FUNCTION]},
}
"""What must be there for a field to make sense."""


class ToolTokenizer(ByteTokenizer):
    """Its chat template shows tools, and writes everything as JSON."""

    chat_template = "<tool_call> {{ tools }}"

    def apply_chat_template(self, messages: Any, add_generation_prompt: bool = True, tools: Any = None) -> str:
        return json.dumps([messages, tools])


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    limits = {"max_model_len": 2048, "num_blocks": 600, "max_num_batched_tokens": 512}
    engine = make_engine(ScriptedExecutor(echo), tokenizer=ToolTokenizer(), **limits)
    engine.compile_form = lambda form: form
    with serving(engine=engine) as running:
        yield running
        running.rest()


def models() -> list[type[Body]]:
    """The models of objects that are in the table."""
    found = [vars(module).values() for module in (chat, completions, forms, generation, tools)]
    made = {model for values in found for model in values if isinstance(model, type) and issubclass(model, Body)}
    return sorted((model for model in made if model.kinds), key=lambda model: model.__name__)


@pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)
def test_the_used_fields_are_those_of_the_models(model: type[Body]) -> None:
    own = {field.alias or name for name, field in model.model_fields.items()}
    table = fields_of(model.kinds)

    assert {name for name, field in table.items() if field.use is Use.USED} == own
    assert {field.target for field in table.values() if field.use is Use.ALIAS} <= own


def test_no_field_is_in_the_table_twice() -> None:
    for kinds in (["generation", "chat"], ["generation", "completion"], *([kind] for kind in OBJECTS)):
        names = [field.name for kind in kinds for field in OBJECTS[kind]]
        assert len(names) == len(set(names))


def parts_of(kind: Any) -> Iterator[Any]:
    """The types that a type is made of."""
    for part in typing.get_args(kind):
        if not isinstance(part, str):
            yield part
            yield from parts_of(part)


def unknown_fields(request: Any, kinds: tuple[str, ...]) -> Iterator[str]:
    """Fields of a request type that are in no row, and objects in used fields that are not in the table."""
    table = fields_of(kinds)
    for name, kind in get_type_hints(request).items():
        field = table.get(name)
        nested = [part for part in (kind, *parts_of(kind)) if is_typeddict(part)]
        if field is None:
            yield f"{request.__name__}.{name}"
        elif field.use is Use.USED and nested:
            if not field.inside:
                yield f"{request.__name__}.{name} has objects that are not in the table"
                continue
            for part in nested:
                if is_supported(part, field.inside):
                    yield from unknown_fields(part, (field.inside,))


def is_supported(request: Any, kind: str) -> bool:
    """Whether a variant of an object is of a type that is not refused as a whole."""
    field = fields_of([kind]).get("type")
    own = typing.get_args(get_type_hints(request).get("type"))
    return field is None or not field.only or own[0] in field.only


@pytest.mark.parametrize("kind", OFFICIAL)
def test_every_field_of_the_official_client_is_in_the_table(kind: str) -> None:
    missing = [path for request in OFFICIAL[kind] for path in unknown_fields(request, ("generation", kind))]

    assert missing == []


def samples(kind: Any, name: str = "") -> list[Any]:
    """Values of a type of the official client: every variant, and every optional field by itself."""
    if is_typeddict(kind):
        return _objects(kind)
    if name == "tools" and "object" in str(kind):
        return [TOOLS]  # of allowed_tools
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return list(args)
    if origin is dict:
        return [{"1": sample} for sample in samples(args[1])] if args[1] is not object else [{}]
    if args and args[-1] is not type(None) and origin is not typing.Union and not _is_union(kind):
        return [[sample] for sample in samples(args[0])]
    if args:
        return [sample for part in args for sample in samples(part, name)]
    simple: dict[Any, list[Any]] = {int: [1], float: [1.0], bool: [True, False], type(None): [None], object: ["x"]}
    return simple.get(kind, ["{}" if name == "arguments" else "x"])


def _is_union(kind: Any) -> bool:
    return type(kind).__name__ in ("UnionType", "_UnionGenericAlias", "Union")


def _objects(kind: Any) -> list[Any]:
    hints = get_type_hints(kind)
    choices = {name: samples(hint, name) for name, hint in hints.items()}
    extras = get_type_hints(kind, include_extras=True)
    least = {name: choices[name][0] for name in hints if typing.get_origin(extras[name]) is Required}
    return [least, *({**least, name: value} for name, values in choices.items() for value in values)]


def official_fields() -> list[tuple[str, str, Any]]:
    """Endpoint, field and type of everything that the official client may send."""
    pairs = {
        (endpoint, name): kind
        for endpoint, requests in OFFICIAL.items()
        for request in requests
        for name, kind in get_type_hints(request).items()
        if name not in ("model", "stream")
    }
    return [(endpoint, name, kind) for (endpoint, name), kind in pairs.items()]


@pytest.mark.parametrize(("endpoint", "name", "kind"), official_fields(), ids=lambda value: str(value)[:30])
def test_whatever_the_official_client_sends_is_taken_or_refused_with_a_sentence(
    server: Running, endpoint: str, name: str, kind: Any
) -> None:
    sentences = [
        field for fields in OBJECTS.values() for field in fields if field.otherwise or field.use is Use.REFUSED
    ]
    for value in samples(kind, name):
        if (name, value) == ("prompt", None):
            continue  # the client's type has it, its method does not
        body = {**BODIES[endpoint], **COMPANIONS.get(name, {}), name: value}
        answer = server.post(PATHS[endpoint], body)

        if answer.status_code != 200:
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "unsupported"), (body, error)
            assert error["param"].split(".")[-1] in {field.name for field in sentences}, (body, error)


NEUTRAL = [(kind, field) for kind in ("generation", "chat", "completion") for field in OBJECTS[kind]]


@pytest.mark.parametrize(("kind", "field"), NEUTRAL, ids=lambda value: getattr(value, "name", value))
def test_every_row_does_what_it_says(server: Running, kind: str, field: Any) -> None:
    endpoint = "completion" if kind == "completion" else "chat"
    if field.use is Use.USED:
        return
    for value in (None, *field.neutral):
        answer = server.post(PATHS[endpoint], {**BODIES[endpoint], field.name: value})
        assert answer.status_code == 200, answer.text
    if field.use is Use.ALIAS:
        return
    answer = server.post(PATHS[endpoint], {**BODIES[endpoint], field.name: {"some": "thing"}})
    if field.use is Use.TAKEN:
        assert answer.status_code == 200, answer.text
    else:
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, field.name, "unsupported")
        assert error["message"] == field.text


def test_a_field_without_effect_is_named_once_in_the_log(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    note_taken.cache_clear()
    with caplog.at_level(logging.WARNING, logger="headway.server.protocol.fields"):
        for _ in range(3):
            server.complete("ab", metadata={"a": "b"}, store=None, max_tokens=1)

    assert [record.getMessage() for record in caplog.records] == [
        "the field metadata is taken without effect: nothing is stored"
    ]


@pytest.mark.parametrize(
    ("endpoint", "fields", "param", "hint"),
    [
        ("completion", {"max_token": 5}, "max_token", "max_tokens"),
        ("completion", {"prompt_cache_keys": "a"}, "prompt_cache_keys", "prompt_cache_key"),
        ("chat", {"reasoning_efort": "low"}, "reasoning_efort", "reasoning_effort"),
        (
            "chat",
            {"stream": True, "stream_options": {"include_usages": True}},
            "stream_options.include_usages",
            "usage",
        ),
        ("chat", {"tools": [{**TOOLS[0], "cache_controls": 1}]}, "tools[0].cache_controls", "cache_control"),
        ("chat", {"response_format": {"type": "text", "regexp": "a"}}, "response_format.regexp", "regex"),
    ],
)
def test_a_misspelt_field_is_refused_with_the_nearest_name(
    server: Running, endpoint: str, fields: dict[str, Any], param: str, hint: str
) -> None:
    error = server.post(PATHS[endpoint], {**BODIES[endpoint], **fields}).json()["error"]

    assert (error["param"], error["code"]) == (param, "unknown_parameter")
    assert "did you mean" in error["message"] and hint in error["message"]


def test_the_names_of_other_servers_are_read_as_ours(server: Running) -> None:
    short = server.post(PATHS["completion"], {"prompt": "ab", "n_predict": 2, "repeat_penalty": 1.0}).json()
    both = server.complete("ab", n_predict=2, max_tokens=3).json()["error"]

    assert short["choices"][0]["text"] == "ab"
    assert (both["param"], both["message"]) == ("n_predict", "n_predict and max_tokens mean the same; give one of them")


def test_marks_for_other_caches_are_taken_everywhere(server: Running) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    part = {"type": "text", "text": "hello", **mark}
    body = {
        "messages": [{"role": "system", "content": [part], **mark}, {"role": "user", "content": [part, part]}],
        "tools": [{**TOOLS[0], **mark}, {"type": "function", "function": {"name": "y", **mark}}],
        "max_tokens": 2,
        **mark,
    }

    assert server.post(PATHS["chat"], body).status_code == 200
