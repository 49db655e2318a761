"""Every keyword of JSON Schema (draft 2020-12, and what older drafts and generators add), and how far it is kept to.

The table in docs/structured-output.md is made of this (``make docs``). ``rewrite`` does what it says, and a test holds
the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Keeping(StrEnum):
    """How far a keyword is kept to."""

    KEPT = "enforced"
    PARTLY = "enforced in part"
    ANNOTATION = "annotation"
    SILENT = "says nothing of the value"


@dataclass(frozen=True)
class Keyword:
    """One keyword.

    Attributes:
        text: what to know of it; of a keyword kept to in part, where it is.
    """

    name: str
    keeping: Keeping
    text: str = ""


def _all(names: str, keeping: Keeping, text: str = "") -> list[Keyword]:
    return [Keyword(name, keeping, text) for name in names.split()]


KEYWORDS: tuple[Keyword, ...] = (
    *_all("type enum const", Keeping.KEPT),
    *_all("allOf anyOf", Keeping.KEPT),
    Keyword("oneOf", Keeping.PARTLY, "where alternatives differ in type or in a required constant; else as `anyOf`"),
    Keyword("not", Keeping.PARTLY, "`{}` and `true` only: no value at all"),
    *_all("if then else", Keeping.ANNOTATION, "`if` alone says nothing"),
    *_all("$ref $defs definitions $id $anchor", Keeping.KEPT, "references within the schema; others are refused"),
    *_all("$dynamicRef $dynamicAnchor $recursiveRef", Keeping.KEPT, "as `$ref` and `$anchor`"),
    *_all("properties required additionalProperties", Keeping.KEPT, "keys come in the order of `properties`"),
    Keyword(
        "patternProperties", Keeping.KEPT, "without `properties` and `additionalProperties` there are no other keys"
    ),
    Keyword(
        "propertyNames",
        Keeping.PARTLY,
        "one of `enum`, `const`, `pattern`, `format`, or lengths, beside no `properties` or `patternProperties`",
    ),
    *_all(
        "minProperties maxProperties",
        Keeping.PARTLY,
        "where all of `properties` are required, or the rest of the schema says as much; a key may come twice",
    ),
    *_all("dependentRequired dependentSchemas dependencies", Keeping.ANNOTATION),
    Keyword("unevaluatedProperties", Keeping.PARTLY, "as `additionalProperties`, beside no combination or reference"),
    *_all("items prefixItems minItems maxItems", Keeping.KEPT),
    Keyword("additionalItems", Keeping.KEPT, "of older drafts"),
    Keyword("uniqueItems", Keeping.PARTLY, "where `maxItems` is at most 1"),
    *_all("contains minContains maxContains", Keeping.ANNOTATION, "`minContains` 0 says nothing"),
    Keyword("unevaluatedItems", Keeping.PARTLY, "as `items`, beside no combination or reference"),
    *_all("minLength maxLength", Keeping.KEPT),
    Keyword(
        "pattern",
        Keeping.PARTLY,
        "no `\\b`, reference back or look-around, but `(?=...)` at the start, and what pydantic and zod write there",
    ),
    Keyword("format", Keeping.PARTLY, "the formats below; others say nothing"),
    *_all("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf", Keeping.KEPT),
    Keyword("contentEncoding", Keeping.PARTLY, "base64 and base64url, without `format`"),
    *_all("contentMediaType contentSchema", Keeping.SILENT, "text within text is not looked at; a warning says so"),
    *_all("title description default examples deprecated readOnly writeOnly $comment", Keeping.SILENT),
    *_all("$schema $vocabulary", Keeping.SILENT, "all schemas are read alike"),
    *_all("discriminator nullable example externalDocs xml", Keeping.SILENT, "OpenAPI's; `nullable` does not add null"),
)
