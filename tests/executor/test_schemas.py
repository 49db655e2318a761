"""JSON of schemas as pydantic makes them, sampled under the mask: it parses, and is valid to who wrote the schema."""

from __future__ import annotations

import base64
import datetime
import enum
import ipaddress
import json
import random
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, Optional

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import (
    AnyUrl,
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    IPvAnyAddress,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.dataclasses import dataclass

from headway.config import Structured
from headway.config.schemas.keywords import KEYWORDS
from headway.executor.grammars import GuidanceGrammars
from tests.engine.builders import EOS, ByteTokenizer

TOKENIZER = ByteTokenizer()
GRAMMARS = GuidanceGrammars(TOKENIZER, TOKENIZER.vocab_size, [EOS])
CLOSING = [EOS, *b'"}]n ,']
"""What a value ends with, the strongest first; "n" is for null, where a value could be a deeper one."""
OFTEN, PATIENCE = 0.15, 250


def sample(schema: dict[str, Any], seed: int) -> str:
    """A random output of a schema: any token that is allowed, but ends are made more likely."""
    matcher, draw, output = GRAMMARS.start(Structured.json(schema)), random.Random(seed), bytearray()
    bits = np.zeros((1, 9), np.int32)
    while len(output) < 5000:
        GRAMMARS.fill([matcher], bits)
        assert matcher.error == "", (matcher.error, bytes(output))
        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()
        ends = [token for token in CLOSING if token in allowed]
        wants_end = ends and (len(output) > PATIENCE or draw.random() < OFTEN)
        token = ends[0] if wants_end else draw.choice([token for token in allowed if token != ord("\\")] or allowed)
        if token == EOS:
            return output.decode()
        matcher.consume([token])
        output.append(token)
    raise AssertionError(f"it does not end: {bytes(output[:200])!r}")


def a_url(text: str) -> None:
    assert TypeAdapter(AnyUrl).validate_python(text).scheme


PARSERS: dict[str, Callable[[str], Any]] = {
    "date": datetime.date.fromisoformat,
    "date-time": datetime.datetime.fromisoformat,
    "time": datetime.time.fromisoformat,
    "duration": TypeAdapter(datetime.timedelta).validate_python,
    "uuid": uuid.UUID,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "ipv4interface": ipaddress.IPv4Interface,
    "ipv6interface": ipaddress.IPv6Interface,
    "ipv4network": ipaddress.IPv4Network,
    "ipv6network": ipaddress.IPv6Network,
    "ipvanyaddress": ipaddress.ip_address,
    "hostname": lambda text: text.encode("idna"),
    "uri": a_url,
    "base64": lambda text: base64.b64decode(text, validate=True),
    "base64url": base64.urlsafe_b64decode,
    **{
        f"uuid{version}": lambda text, version=version: uuid.UUID(text).version == version or 1 / 0
        for version in range(1, 9)
    },
}


@pytest.mark.parametrize("name", PARSERS)
def test_what_a_format_lets_out_is_parsed_by_the_standard_library(name: str) -> None:
    for seed in range(25):
        PARSERS[name](json.loads(sample({"type": "string", "format": name}, seed)))


@pytest.mark.parametrize(
    ("schema", "parse"),
    [
        ({"format": "date", "pattern": "^....-02-[23]"}, datetime.date.fromisoformat),
        ({"format": "date-time", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"}, datetime.datetime.fromisoformat),
        ({"format": "date-time", "pattern": r"^[^Z+]{10}T[^Z+]{5}$"}, datetime.datetime.fromisoformat),
        ({"format": "time", "pattern": r"^\d\d:\d\d:\d\d$"}, datetime.time.fromisoformat),
        ({"format": "uri", "minLength": 1, "maxLength": 2083}, TypeAdapter(HttpUrl).validate_python),
        ({"pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}, Decimal),
        ({"contentEncoding": "base64", "maxLength": 40}, base64.b64decode),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)  # fmt: skip
def test_a_format_goes_with_other_keywords(schema: dict[str, Any], parse: Callable[[str], Any]) -> None:
    for seed in range(25):
        parse(json.loads(sample({"type": "string", **schema}, seed)))


STRING, OBJECT = {"type": "string"}, {"type": "object", "properties": {"a": {}}, "required": ["a"]}
ARRAY: dict[str, Any] = {"type": "array", "items": {"const": 1}}
ONE_OF_EACH: dict[str, dict[str, Any]] = {
    **{name: {name: [{}]} for name in ("allOf", "anyOf", "oneOf", "prefixItems")},
    **{name: {**STRING, name: {}} for name in ("if", "then", "else", "contentSchema", "discriminator", "xml")},
    **{name: {**STRING, name: "base64"} for name in ("contentEncoding", "contentMediaType", "title", "description")},
    **{name: {**STRING, name: True} for name in ("deprecated", "readOnly", "writeOnly", "nullable", "example")},
    **{name: {**ARRAY, name: 1} for name in ("minItems", "maxItems", "minContains", "maxContains")},
    **{name: {"type": "integer", name: 3} for name in ("minimum", "maximum", "multipleOf")},
    **{name: {"type": "number", name: 3} for name in ("exclusiveMinimum", "exclusiveMaximum")},
    **{name: {**STRING, name: 2} for name in ("minLength", "maxLength")},
    **{name: {**ARRAY, name: {}} for name in ("items", "contains", "unevaluatedItems", "externalDocs")},
    **{name: {**OBJECT, name: 1} for name in ("minProperties", "maxProperties")},
    **{name: {**OBJECT, name: {"b": ["a"]}} for name in ("dependentRequired", "dependencies")},
    **{name: {**OBJECT, name: {"a": {}}} for name in ("properties", "patternProperties", "dependentSchemas")},
    **{name: {**OBJECT, name: False} for name in ("additionalProperties", "unevaluatedProperties")},
    **{name: {"$ref": f"#/{name}/x", name: {"x": STRING}} for name in ("$defs", "definitions")},
    **{name: {**STRING, name: "http://a.org/b"} for name in ("$id", "$schema", "$comment", "default")},
    "type": STRING, "enum": {"enum": [1]}, "const": {"const": [1]}, "not": {"not": {"const": 1}},
    "$ref": {"properties": {"a": {"$ref": "#"}}}, "$recursiveRef": {"properties": {"a": {"$recursiveRef": "#"}}},
    "$anchor": {"$ref": "#x", "$defs": {"a": {"$anchor": "x"}}},
    "$dynamicAnchor": {"$ref": "#x", "$defs": {"a": {"$dynamicAnchor": "x"}}},
    "$dynamicRef": {"$dynamicRef": "#x", "$defs": {"a": {"$anchor": "x"}}},
    "$vocabulary": {"$vocabulary": {}}, "examples": {"examples": [1]}, "required": {"required": ["a"]},
    "propertyNames": {"propertyNames": {"const": "a"}}, "uniqueItems": {**ARRAY, "uniqueItems": True},
    "additionalItems": {"type": "array", "items": [{}], "additionalItems": False},
    "pattern": {**STRING, "pattern": "a"}, "format": {**STRING, "format": "date"},
}  # fmt: skip


@pytest.mark.parametrize("name", [keyword.name for keyword in KEYWORDS])
def test_every_keyword_is_taken_in_a_schema_and_in_one_within(name: str) -> None:
    schema = ONE_OF_EACH[name]

    sample(schema, 1)
    if "#" not in json.dumps(schema):
        sample({"type": "object", "properties": {"inner": schema}, "required": ["inner"]}, 2)


# --- models of all kinds of fields ---------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Tree(BaseModel):
    model_config = ConfigDict(extra="forbid")

    value: int
    children: list[Tree] = Field(max_length=2)
    left: Tree | None = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str = Field(alias="dogName", max_length=10)


class Place(NamedTuple):
    x: float
    y: float


@dataclass
class Span:
    start: datetime.date
    days: Annotated[int, Field(gt=0, multiple_of=7)]


LEAVES: list[Any] = [
    int, float, bool, str, None, Decimal, datetime.date, datetime.datetime, datetime.time, datetime.timedelta,
    uuid.UUID, ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Interface,
    IPvAnyAddress, AnyUrl, HttpUrl, Base64Bytes, bytes, Colour, Literal["a", 1, None], Tree, Span, Place,
    Annotated[Cat | Dog, Field(discriminator="kind")], Cat | Dog | int,
    Annotated[str, Field(pattern=r"^[A-Z]{2}\d+$", max_length=6)], Annotated[str, Field(min_length=2, max_length=4)],
    Annotated[int, Field(ge=-5, lt=100)], Annotated[int, Field(multiple_of=25, gt=0)],
    Annotated[float, Field(gt=0, le=1)], Annotated[Decimal, Field(ge=0, lt=10)],
    set[Annotated[int, Field(ge=0, le=3)]], frozenset[str], set[Colour], tuple[int, str], tuple[bool, ...],
    dict[str, int], dict[Colour, bool], dict[uuid.UUID, int], dict[datetime.date, None],
    dict[Annotated[str, Field(pattern="^k[0-9]$")], int], dict[Annotated[str, Field(min_length=1, max_length=2)], int],
    Annotated[dict[str, int], Field(min_length=1)],
]  # fmt: skip


def optional(kind: Any) -> Any:
    """The type or none; a type that is none itself has no "|"."""
    return Optional[kind]  # noqa: UP045


WRAPPERS: list[Callable[[Any], Any]] = [
    lambda kind: list[kind],
    lambda kind: Annotated[list[kind], Field(min_length=1, max_length=2)],
    lambda kind: optional(kind),
    lambda kind: dict[str, kind],
    lambda kind: tuple[kind, int],
]
UNTOLD = {"decimal_parsing", "decimal_type", "too_short", "finite_number"}
"""Where a schema says less than its model: a decimal may be any text, numbers may have exponents beyond floats, and a
set's length counts equal elements once, which ``uniqueItems`` says and the grammar cannot keep to."""


def fields() -> st.SearchStrategy[Any]:
    """Types of fields, wrapped in others now and then."""
    leaf = st.sampled_from(LEAVES)
    return st.one_of(leaf, leaf, st.builds(lambda wrap, kind: wrap(kind), st.sampled_from(WRAPPERS), leaf))


@st.composite
def models(draw: st.DrawFn) -> type[BaseModel]:
    """Models of a few fields: required or not, with an alias or not, open or closed."""
    made: dict[str, Any] = {}
    for place, kind in enumerate(draw(st.lists(fields(), min_size=1, max_size=3))):
        alias = draw(st.sampled_from([None, f"the field {place}", f"Fêld{place}"]))
        default = draw(st.sampled_from([..., None]))
        made[f"field_{place}"] = (
            optional(kind) if default is None else kind,
            Field(default, alias=alias, description="x"),
        )
    extra: Any = draw(st.sampled_from(["ignore", "forbid"]))
    return create_model("Made", __config__=ConfigDict(extra=extra), **made)


def check(model: type[BaseModel], seed: int) -> None:
    """Sample one output and have its model read it."""
    text = sample(model.model_json_schema(), seed)
    try:
        model.model_validate_json(text)
    except ValidationError as error:
        assert {each["type"] for each in error.errors()} <= UNTOLD, (text, error)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(models(), st.integers(0, 99))
def test_a_model_reads_what_was_made_by_its_schema(model: type[BaseModel], seed: int) -> None:
    check(model, seed)


@pytest.mark.parametrize("kind", LEAVES, ids=str)
def test_every_kind_of_field_is_read_back(kind: Any) -> None:
    model = create_model("Made", field=(kind, ...))
    for seed in range(4):
        check(model, seed)
