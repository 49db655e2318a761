"""What form an output must have, out of the fields that can say it: OpenAI's, and those that vLLM's users know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from headway.config import ConfigError, Structured
from headway.config.server import ServerOptions
from headway.server.errors import ApiError, invalid, unusable
from headway.server.protocol.forms import ResponseFormat
from headway.server.protocol.generation import GenerationBody

GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
"""vLLM's older fields, and what each is called in ``structured_outputs``."""

_SCHEMAS = {"response_format": "response_format.json_schema.schema", "structured_outputs": "structured_outputs.json"}
"""Where the schema stands in fields that have more in them."""


def form_of(body: GenerationBody, options: ServerOptions) -> tuple[Structured | None, str]:
    """The form that a call asks for, and the field that says so.

    Raises:
        ApiError: it cannot be used, is too long, or is said twice.
    """
    given = list(_forms(body))
    if not given:
        return None, ""
    (field, make), *more = given
    if more:
        raise invalid(f"{more[0][0]} and {field} both say what form the output must have; give one", more[0][0])
    try:
        form = make()
    except ConfigError as error:
        raise unusable(error, field, field) from error
    if form is not None:
        check_length(form, field, options)
        place, strict = _SCHEMAS.get(field, field), False
        if field == "response_format" and body.response_format is not None:
            wrapped = body.response_format.json_schema
            place, strict = (place, bool(wrapped.strict)) if wrapped is not None else ("response_format.schema", False)
        form = noted(form, place, strict=strict)
    return form, field


def noted(form: Structured, field: str, *, strict: bool) -> Structured:
    """The form with what of its schema cannot be kept to named by its place in the body.

    Args:
        field: where the schema stands.
        strict: whether such a thing is refused.

    Raises:
        ApiError: it is.
    """
    annotations = tuple(replace(each, path=f"{field}.{each.path}") for each in form.annotations)
    for each in annotations:
        if strict and each.asserts:
            message = (
                f"{each.path} cannot be enforced, which strict asks for (docs/structured-output.md lists what can)"
            )
            raise invalid(message, each.path, "unsupported")
    return replace(form, annotations=annotations)


def check_length(form: Structured, field: str, options: ServerOptions) -> None:
    """Refuse what is too long to be compiled."""
    limit = options.max_regex_chars if form.kind == "regex" else options.max_form_chars
    if len(form.text) > limit:
        message = f"{field} has {len(form.text)} characters; at most {limit} are allowed"
        raise ApiError(400, message, code="limit_exceeded", param=field)


def _forms(body: GenerationBody) -> Iterator[tuple[str, Callable[[], Structured | None]]]:
    """Fields that are there, each with what makes its form."""
    if body.response_format is not None and body.response_format.type != "text":
        response_format = body.response_format
        yield "response_format", lambda: _of_response_format(response_format)
    if body.structured_outputs is not None:
        outputs = body.structured_outputs.model_dump(by_alias=True)
        yield "structured_outputs", lambda: Structured.of(outputs)
    for field, name in GUIDED.items():
        value = getattr(body, field)
        if value is not None:
            yield field, _of_one(name, value)


def _of_one(name: str, value: Any) -> Callable[[], Structured]:
    form: Mapping[str, Any] = {name: value}
    return lambda: Structured.of(form)


def _of_response_format(given: ResponseFormat) -> Structured:
    if given.type == "regex":
        if given.regex is None:
            raise ConfigError("structured", "regex", "of type regex must have the field regex")
        return Structured.regex(given.regex)
    if given.schema_ is not None and given.json_schema is None:
        return Structured.json(given.schema_)
    if given.type == "json_object":
        return Structured.json_object()
    if given.json_schema is None:
        raise ConfigError("structured", "json_schema", "of type json_schema must have the field json_schema")
    schema = given.json_schema.json_schema
    return Structured.json_object() if schema is None else Structured.json(schema)
