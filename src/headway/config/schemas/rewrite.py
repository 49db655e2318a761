"""Rewrites a JSON schema into one that the compiler of grammars takes, and tells what of it cannot be kept to.

What the compiler lacks is said in other words where there are any (formats as patterns, ``propertyNames`` as
``patternProperties``); the words may be narrower than the original, never wider. The rest is left out and noted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.config.depth import NestedTooDeeply
from headway.config.schemas.formats import FREE, format_pattern
from headway.config.schemas.keywords import KEYWORDS, Keeping
from headway.config.schemas.patterns import split

Schema = dict[str, Any]

_LEFT_OUT = tuple(keyword.name for keyword in KEYWORDS if keyword.keeping is Keeping.ANNOTATION)
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = ("items", "additionalProperties", "additionalItems")
_COMBINING = ("allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas")
_RENAMED = {"$dynamicRef": "$ref", "$recursiveRef": "$ref", "$dynamicAnchor": "$anchor"}
_TYPE_NAMES = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}
_MAX_HOPS = 32
"""A chain of references that is longer goes in a circle."""
_MAX_SHOWN = 200


@dataclass(frozen=True)
class Annotation:
    """A part of a schema that is not kept to.

    Attributes:
        path: from the schema's root to the keyword, with points between.
        asserts: whether the keyword asks for something, so that a strict schema with it is refused; formats that
            nobody knows and text within text do not.
    """

    path: str
    asserts: bool = True

    def __str__(self) -> str:
        return f"{self.path} is not enforced"


def prepare(schema: Mapping[str, Any]) -> tuple[Schema, tuple[Annotation, ...]]:
    """The schema in the compiler's words, and what of it is lost.

    Raises:
        NestedTooDeeply: as it says.
    """
    rewriting = _Rewriting(schema)
    try:
        rewritten = rewriting.schema(schema, ())
    except RecursionError as error:
        raise NestedTooDeeply("structured") from error
    return ({"enum": []} if rewritten is False else rewritten), tuple(rewriting.annotations)


class _Rewriting:
    """One schema being rewritten.

    Args:
        root: what references point into.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self.annotations: list[Annotation] = []

    def schema(self, given: Any, path: tuple[str, ...]) -> Any:
        """A schema at a place; what is none is left for the compiler to refuse."""
        if not isinstance(given, Mapping):
            return given
        if given.get("not") in ({}, True) and "not" in given:
            return False
        schema = {_RENAMED.get(str(key), str(key)): value for key, value in given.items()}
        schema.pop("$schema", None)  # the compiler would look it up
        self._string(schema, path)
        self._array(schema, path)
        self._object(schema, path)
        self._alternatives(schema, path)
        self._leave_out(schema, path)
        self._parts(schema, path)
        return schema

    def _note(self, path: tuple[str, ...], keyword: str, *, asserts: bool = True) -> None:
        shown = ".".join((*path, keyword))
        self.annotations.append(Annotation(shown[-_MAX_SHOWN:], asserts))

    def _parts(self, schema: Schema, path: tuple[str, ...]) -> None:
        for key in _MAPS:
            if isinstance(schema.get(key), Mapping):
                schema[key] = {name: self.schema(part, (*path, key, name)) for name, part in schema[key].items()}
        for key in _LISTS:
            if isinstance(schema.get(key), list):
                schema[key] = [self.schema(part, (*path, key, str(n))) for n, part in enumerate(schema[key])]
        for key in _SINGLE:
            if isinstance(schema.get(key), Mapping):
                schema[key] = self.schema(schema[key], (*path, key))

    # --- strings ---

    def _string(self, schema: Schema, path: tuple[str, ...]) -> None:
        pattern, format_name = schema.get("pattern"), schema.pop("format", None)
        if schema.get("contentEncoding") in ("base64", "base64url") and format_name is None:
            format_name = schema["contentEncoding"]
        for key in ("contentMediaType", "contentSchema"):
            if key in schema:
                self._note(path, key, asserts=False)
        if not isinstance(format_name, str) or not _may_be(schema, "string"):
            format_name = ""
        found = format_pattern(format_name, schema.get("maxLength"), has_pattern=isinstance(pattern, str))
        patterns = [] if found is None else [f"^(?:{found})$"]
        if isinstance(pattern, str):
            own = split(pattern, format_name)
            if own is None:
                self._note(path, "pattern")
            patterns += own or []
            del schema["pattern"]
        if format_name and found is None and format_name not in FREE:
            self._note(path, f"format {format_name!r}", asserts=False)
        if patterns:
            schema["pattern"], *more = patterns
            if more:
                own_all = schema.get("allOf")
                schema["allOf"] = [*(own_all if isinstance(own_all, list) else ()), *({"pattern": p} for p in more)]

    # --- arrays ---

    def _array(self, schema: Schema, path: tuple[str, ...]) -> None:
        at_most = schema.get("maxItems")
        if schema.pop("uniqueItems", False) and not (isinstance(at_most, int) and at_most <= 1):
            self._note(path, "uniqueItems")
        if schema.get("minContains") == 0 and "maxContains" not in schema:
            schema.pop("contains", None)
        if "contains" not in schema:
            schema.pop("minContains", None)
            schema.pop("maxContains", None)
        self._unevaluated(schema, path, "unevaluatedItems", "items")

    def _unevaluated(self, schema: Schema, path: tuple[str, ...], keyword: str, plain: str) -> None:
        """Say the same with the keyword that looks at this schema alone, if nothing else does."""
        if keyword not in schema:
            return
        wanted = schema.pop(keyword)
        if plain in schema or wanted in (True, {}):
            return
        if any(key in schema for key in _COMBINING):
            self._note(path, keyword)
        else:
            schema[plain] = wanted

    # --- objects ---

    def _object(self, schema: Schema, path: tuple[str, ...]) -> None:
        self._unevaluated(schema, path, "unevaluatedProperties", "additionalProperties")
        if "propertyNames" in schema:
            names = schema.pop("propertyNames")
            if names not in (True, {}) and not self._name_properties(schema, names):
                self._note(path, "propertyNames")
        if "patternProperties" in schema and "properties" not in schema:
            schema.setdefault("additionalProperties", False)
        self._count_properties(schema, path)

    def _name_properties(self, schema: Schema, names: Any) -> bool:
        """Say what keys may be by listing them, or by a pattern of them; whether that could be done."""
        names = self._resolve(names)
        if not isinstance(names, Mapping) or schema.get("properties") or schema.get("patternProperties"):
            return False
        value = schema.get("additionalProperties", True)
        rules = {key: names[key] for key in names if key not in ("type", "title", "description")}
        texts = rules.get("enum", [rules["const"]] if "const" in rules else None)
        if isinstance(texts, list) and len(rules) == 1:
            schema["properties"] = {text: value for text in texts if isinstance(text, str)}
        elif (pattern := _pattern_of_names(rules)) is not None:
            schema["patternProperties"] = {pattern: value}
        else:
            return False
        schema["additionalProperties"] = False
        return True

    def _count_properties(self, schema: Schema, path: tuple[str, ...]) -> None:
        properties, required = schema.get("properties") or {}, schema.get("required") or []
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            return
        if properties.keys() <= {name for name in required if isinstance(name, str)}:
            return  # the compiler counts
        closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
        least, most = schema.pop("minProperties", None), schema.pop("maxProperties", None)
        if least is not None and not (isinstance(least, int) and least <= len(required)):
            self._note(path, "minProperties")
        if most is not None and not (isinstance(most, int) and closed and most >= len(properties)):
            self._note(path, "maxProperties")

    # --- alternatives ---

    def _alternatives(self, schema: Schema, path: tuple[str, ...]) -> None:
        if isinstance(schema.get("oneOf"), list):
            alternatives = schema.pop("oneOf")
            if not self._are_apart(alternatives):
                self._note(path, "oneOf")
            if "anyOf" in schema:
                schema["allOf"] = [*(schema.get("allOf") or ()), {"anyOf": alternatives}]
            else:
                schema["anyOf"] = alternatives
        if "if" not in schema or not schema.keys() & {"then", "else"}:
            for key in ("if", "then", "else"):
                schema.pop(key, None)

    def _are_apart(self, alternatives: list[Any]) -> bool:
        """Whether it is plain that no value fits two of them: they differ in type, or in a required constant."""
        resolved = [self._resolve(each) for each in alternatives]
        if not all(isinstance(each, Mapping) for each in resolved):
            return False
        if _all_differ([_constants(each) for each in resolved]):
            return True
        objects = [each for each in resolved if _types(each) == {"object"}]
        others = [_types(each) for each in resolved if _types(each) != {"object"}]
        if not _all_differ([*others, {"object"}] if objects else others):
            return False
        tags = objects[0].get("required") if objects else ()
        return len(objects) < 2 or any(
            _all_differ([self._constants_of(each, tag) for each in objects])
            for tag in tags or ()
            if isinstance(tag, str)
        )

    def _constants_of(self, schema: Mapping[str, Any], name: str) -> set[Any] | None:
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, Mapping) or not isinstance(required, list) or name not in required:
            return None
        part = self._resolve(properties.get(name))
        return _constants(part) if isinstance(part, Mapping) else None

    def _resolve(self, schema: Any) -> Any:
        """What a schema that is a reference within the root points to, itself otherwise."""
        for _ in range(_MAX_HOPS):
            if not isinstance(schema, Mapping) or not str(schema.get("$ref", "")).startswith("#/"):
                return schema
            target: Any = self._root
            for step in str(schema["$ref"])[2:].split("/"):
                name = step.replace("~1", "/").replace("~0", "~")
                target = target.get(name) if isinstance(target, Mapping) else None
            schema = target
        return None

    def _leave_out(self, schema: Schema, path: tuple[str, ...]) -> None:
        for keyword in (*_LEFT_OUT, "not"):
            if keyword in schema:
                del schema[keyword]
                self._note(path, keyword)


def _may_be(schema: Mapping[str, Any], kind: str) -> bool:
    types = schema.get("type", kind)
    return types == kind or (isinstance(types, list) and kind in types)


def _types(schema: Mapping[str, Any]) -> set[str] | None:
    """The types that values may have, integers being numbers; ``None`` if that is not plain."""
    given = schema.get("type")
    constants = _constants(schema)
    if given is None and constants is not None:
        given = [_TYPE_NAMES[type(value)] for _, value in constants]
    types = given if isinstance(given, list) else [given]
    names = {"number" if each == "integer" else each for each in types if isinstance(each, str)}
    return names if all(isinstance(each, str) for each in types) else None


def _constants(schema: Mapping[str, Any]) -> set[Any] | None:
    """The values that may be; ``None`` if they are not listed, or not all simple."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or not all(
        value is None or isinstance(value, str | int | float) for value in values
    ):
        return None
    return {(isinstance(value, bool), value) for value in values}


def _all_differ(sets: list[set[Any] | None]) -> bool:
    """Whether no value is in two of the sets."""
    known = [each for each in sets if each is not None]
    return len(known) == len(sets) and len(set().union(*known)) == sum(map(len, known))


def _pattern_of_names(rules: Mapping[str, Any]) -> str | None:
    """One pattern for keys that have these keywords; ``None`` if there is none."""
    if rules.keys() == {"pattern"}:
        own = split(str(rules["pattern"]))
        return own[0] if own is not None and len(own) == 1 else None
    if rules.keys() == {"format"}:
        found = format_pattern(str(rules["format"]), None, has_pattern=False)
        return None if found is None else f"^(?:{found})$"
    if rules and rules.keys() <= {"minLength", "maxLength"}:
        return f"^(?s:.{{{rules.get('minLength', 0)},{rules.get('maxLength', '')}}})$"
    return None
