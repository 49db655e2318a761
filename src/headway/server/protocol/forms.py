"""Fields that say what form an output must have. What stands in them is checked in ``server.forms``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from headway.server.protocol.base import Body


class JsonSchemaFormat(Body):
    """A schema, as OpenAI wraps it."""

    kinds = ("json_schema",)

    name: str | None = None
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None
    """Known to OpenAI; here every schema is kept to."""


class ResponseFormat(Body):
    """OpenAI's form of an output; the type "regex" is our own."""

    kinds = ("response_format",)

    type: Literal["text", "json_object", "json_schema", "regex"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    regex: str | None = None


class StructuredOutputs(Body):
    """vLLM's form of an output: just one of these, which ``Structured.of`` checks."""

    kinds = ("structured_outputs",)

    json_: Any = Field(None, alias="json")
    json_object: Any = None
    regex: Any = None
    choice: Any = None
    grammar: Any = None
