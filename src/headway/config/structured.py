"""What form an output must have: a JSON schema, a regular expression, a choice of texts, or a grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.config.depth import check_depth, load_json
from headway.config.kinds import WrongKind, as_kind
from headway.config.options import ConfigError
from headway.config.schemas import Annotation, prepare

KINDS = ("json", "regex", "choice", "grammar")
FORMS = (*KINDS, "json_object")
"""Keys of :meth:`Structured.of`."""

JSON_OPTIONS = {"whitespace_pattern": r"[ ]|\n[ \t]{0,20}"}
"""Between the parts of JSON stands at most one space, or one line end and an indentation. Unbounded white space is
valid too, and small models write it until they run out of tokens."""

FAILED = "structured output failed: "
"""Begins the message of a request whose form could not be kept to."""


@dataclass(frozen=True)
class Reasoning:
    """Free text that comes before an output's form, between marks.

    Attributes:
        opening, closing: the marks.
        is_open: whether the prompt has the opening mark already: then there is reasoning, else there may be.
        opening_id, closing_id: ids of the marks, if they are special tokens, which have no text.
    """

    opening: str
    closing: str
    is_open: bool = False
    opening_id: int | None = None
    closing_id: int | None = None


@dataclass(frozen=True)
class Structured:
    """A form that an output must have, as text; whoever samples compiles it.

    Attributes:
        kind: one of ``KINDS``.
        text: the JSON schema; the regular expression, of which the whole output is a match; the choices, as a JSON
            list of texts; or the grammar, in Lark's or GBNF's notation.
        annotations: parts of JSON schemas in it that are not kept to.
        reasoning: what comes before it.
    """

    kind: str
    text: str
    annotations: tuple[Annotation, ...] = field(default=(), compare=False, repr=False)
    reasoning: Reasoning | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError("structured", self.kind, f"must be of a kind out of {', '.join(KINDS)}")
        try:
            as_kind(str, self.text)
        except WrongKind as wrong:
            raise ConfigError("structured", self.kind, str(wrong)) from None
        if not self.text:
            raise ConfigError("structured", self.kind, "must not be empty")

    @staticmethod
    def json(schema: Mapping[str, Any] | str, *, strict: bool = False) -> Structured:
        """JSON that fits a schema, given as an object or as text.

        Args:
            strict: refuse keywords that cannot be kept to; else they are noted in ``annotations``.

        Raises:
            ConfigError: it is no schema; it is strict and has such a keyword, which is named with its path; or it is
                nested too deeply.
        """
        if not isinstance(schema, str):
            check_depth("structured", schema)
        try:
            text = schema if isinstance(schema, str) else json.dumps(dict(schema), ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise ConfigError("structured", "json", f"must be {_VALUES['json']} ({error})") from error
        annotations = annotations_of(schema)
        for annotation in annotations if strict else ():
            if annotation.asserts:
                raise ConfigError("structured", "json", f"is strict, but {annotation}")
        return Structured("json", text, annotations)

    @staticmethod
    def json_object() -> Structured:
        """Any JSON object."""
        return Structured("json", '{"type": "object"}')

    @staticmethod
    def regex(pattern: str) -> Structured:
        """Text that a regular expression matches as a whole."""
        return Structured("regex", pattern)

    @staticmethod
    def choice(texts: Sequence[str]) -> Structured:
        """One of several texts."""
        try:
            several = as_kind(tuple[str, ...], texts)
        except WrongKind as wrong:
            raise ConfigError("structured", "choice", str(wrong)) from None
        if not several or not all(several):
            raise ConfigError("structured", "choice", "must be a list of texts, none of them empty")
        return Structured("choice", json.dumps(list(several), ensure_ascii=False))

    @staticmethod
    def grammar(text: str) -> Structured:
        """Text of a grammar in Lark's or GBNF's notation."""
        return Structured("grammar", text)

    @staticmethod
    def of(form: Mapping[str, Any]) -> Structured:
        """A form written as an object with one key out of ``FORMS``.

        Raises:
            ConfigError: it has another key, more than one, or a value of the wrong type.
        """
        given = [name for name, value in form.items() if value is not None]
        if len(given) != 1 or given[0] not in FORMS:
            found = ", ".join(map(repr, given)) or "none"
            raise ConfigError("structured", found, f"must have just one of {', '.join(FORMS)}")
        name, value = given[0], form[given[0]]
        if name == "json_object" and value is True:
            return Structured.json_object()
        if name == "choice" and isinstance(value, list) and all(isinstance(text, str) for text in value):
            return Structured.choice(value)
        if name == "json" and isinstance(value, Mapping | str):
            return Structured.json(value)
        if name in ("regex", "grammar") and isinstance(value, str):
            return Structured(name, value)
        raise ConfigError("structured", name, f"must be {_VALUES[name]}")


def annotations_of(schema: Mapping[str, Any] | str) -> tuple[Annotation, ...]:
    """The parts of a schema that are not kept to; none of what is no schema, which the compiler will say."""
    try:
        given = load_json("structured", schema) if isinstance(schema, str) else schema
    except json.JSONDecodeError:
        return ()
    return prepare(given)[1] if isinstance(given, Mapping) else ()


_VALUES = {
    "json": "a JSON schema, as an object or as text",
    "json_object": "true",
    "regex": "text",
    "choice": "a list of texts",
    "grammar": "text",
}


def json_rule(schema: Any) -> str:
    """JSON of a schema as a part of a Lark grammar, in the dialect that ``Structured.grammar`` takes.

    Raises:
        ConfigError: it is no schema.
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise ConfigError("structured", "json", "must be a JSON schema, which is an object")
    return "%json " + json.dumps({**prepare(schema)[0], "x-guidance": JSON_OPTIONS})
