"""Schemas are rewritten as the table of keywords says: kept to, said in other words, or noted with their path."""

from __future__ import annotations

from typing import Any

import pytest

from headway.config import ConfigError, Structured
from headway.config.schemas import prepare
from headway.config.schemas.keywords import KEYWORDS, Keeping

OBJECT = {"type": "object", "properties": {"a": {}, "b": {}}}
TAGGED = [
    {"type": "object", "properties": {"k": {"const": "x"}}, "required": ["k"]},
    {"type": "object", "properties": {"k": {"const": "y"}}, "required": ["k"]},
]
NOT_KEPT: list[tuple[dict[str, Any], str]] = [
    ({"oneOf": [{"minimum": 1}, {"maximum": 5}]}, "oneOf"),
    ({"oneOf": [TAGGED[0], {**TAGGED[1], "required": []}]}, "oneOf"),
    ({"not": {"type": "string"}}, "not"),
    ({"if": {}, "then": {}, "else": {}}, "if then else"),
    ({**OBJECT, "propertyNames": {"pattern": "a"}}, "propertyNames"),
    ({"propertyNames": {"pattern": "a", "minLength": 3}}, "propertyNames"),
    ({**OBJECT, "minProperties": 1}, "minProperties"),
    ({**OBJECT, "maxProperties": 1}, "maxProperties"),
    ({**OBJECT, "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({**OBJECT, "dependentSchemas": {"a": {}}}, "dependentSchemas"),
    ({**OBJECT, "dependencies": {"a": ["b"]}}, "dependencies"),
    ({"allOf": [OBJECT], "unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"anyOf": [{}], "unevaluatedItems": False}, "unevaluatedItems"),
    ({"uniqueItems": True}, "uniqueItems"),
    ({"contains": {}, "minContains": 2, "maxContains": 3}, "contains minContains maxContains"),
    ({"pattern": r"\bword"}, "pattern"),
    ({"contentEncoding": "quoted-printable"}, ""),
]  # fmt: skip
KEPT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"oneOf": TAGGED}, {"anyOf": TAGGED}),
    ({"oneOf": [{"type": "null"}, {"enum": ["a"]}, *TAGGED]}, {"anyOf": [{"type": "null"}, {"enum": ["a"]}, *TAGGED]}),
    ({"not": {}}, {"enum": []}),
    ({"if": {}}, {}),
    ({"$schema": "http://example.org/own"}, {}),
    ({"uniqueItems": False}, {}),
    ({"uniqueItems": True, "maxItems": 1}, {"maxItems": 1}),
    ({"contains": {}, "minContains": 0}, {}),
    ({**OBJECT, "unevaluatedProperties": False}, {**OBJECT, "additionalProperties": False}),
    ({"prefixItems": [{}], "unevaluatedItems": False}, {"prefixItems": [{}], "items": False}),
    ({"propertyNames": {"enum": ["a"]}}, {"properties": {"a": True}, "additionalProperties": False}),
    (
        {"propertyNames": {"minLength": 2}, "additionalProperties": {"const": 1}},
        {"patternProperties": {"^(?s:.{2,})$": {"const": 1}}, "additionalProperties": False},
    ),
    ({**OBJECT, "required": ["a"], "minProperties": 1}, {**OBJECT, "required": ["a"]}),
    (
        {**OBJECT, "additionalProperties": False, "maxProperties": 2},
        {**OBJECT, "additionalProperties": False},
    ),
    ({"minProperties": 1, "maxProperties": 2}, {"minProperties": 1, "maxProperties": 2}),
    ({"patternProperties": {"a": {}}}, {"patternProperties": {"a": {}}, "additionalProperties": False}),
    ({"$dynamicRef": "#a", "$dynamicAnchor": "a"}, {"$ref": "#a", "$anchor": "a"}),
    ({"type": "integer", "format": "int32"}, {"type": "integer"}),
    ({"format": "password"}, {}),
    ({"pattern": "^(?=b)a"}, {"pattern": "^(?:b)", "allOf": [{"pattern": "^a"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "keywords"), NOT_KEPT, ids=str)
def test_what_is_not_kept_to_is_left_out_and_noted_with_its_path(schema: dict[str, Any], keywords: str) -> None:
    nested = {"type": "array", "items": {"anyOf": [{"properties": {"p": schema}}]}}
    _, annotations = prepare(nested)

    paths = {f"items.anyOf.0.properties.p.{keyword}" for keyword in keywords.split()}
    assert {annotation.path for annotation in annotations} == paths
    for path in paths:
        assert f"{path} is not enforced" in map(str, annotations)
    if paths:
        with pytest.raises(ConfigError, match=r"is strict, but items\.anyOf\.0\.properties\.p"):
            Structured.json(nested, strict=True)


@pytest.mark.parametrize(("schema", "expected"), KEPT, ids=str)
def test_what_can_be_said_in_other_words_is_kept_to(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    before = repr(schema)
    rewritten, annotations = prepare(schema)

    assert rewritten == expected
    assert annotations == ()
    assert repr(schema) == before


def test_the_table_says_of_every_keyword_what_happens() -> None:
    noted = {keyword for _, keywords in NOT_KEPT for keyword in keywords.split()}
    by_table = {keyword.name for keyword in KEYWORDS if keyword.keeping in (Keeping.ANNOTATION, Keeping.PARTLY)}

    assert noted == by_table - {"format", "contentEncoding"}  # formats that nobody knows may stand in strict schemas


@pytest.mark.parametrize("schema", [{"format": "made-up"}, {"contentMediaType": "text/html"}, {"contentSchema": {}}])
def test_what_only_tells_something_is_noted_and_taken_in_strict_schemas_too(schema: dict[str, Any]) -> None:
    form = Structured.json({"items": schema}, strict=True)

    assert len(form.annotations) == 1
    assert not form.annotations[0].asserts


def test_references_are_followed_to_tell_alternatives_apart_and_circles_are_not() -> None:
    definitions = {"a": TAGGED[0], "b": TAGGED[1], "c": {"$ref": "#/$defs/d"}, "d": {"$ref": "#/$defs/c"}}

    def noted(*names: str) -> int:
        schema = {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in names], "$defs": definitions}
        return len(prepare(schema)[1])

    assert [noted("a", "b"), noted("a", "a"), noted("a", "c")] == [0, 1, 1]


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(ConfigError, match="more than 100 deep"):
        prepare(schema)
