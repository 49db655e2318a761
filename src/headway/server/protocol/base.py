"""What all bodies have in common: strict types, and no field but those of the table."""

from __future__ import annotations

import difflib
import functools
from typing import Annotated, Any, ClassVar, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, Discriminator, Tag, model_validator
from pydantic_core import PydanticCustomError

from headway.server.protocol.fields import Field, Use, asks_for_nothing, fields_of, note_taken

_MAX_SHOWN = 40
"""So many characters of a client's value are repeated in an error."""

Item = TypeVar("Item")
Listed = Annotated[list[Item], pydantic.Field(fail_fast=True)]
"""A list that is refused for its first wrong item: naming all of a hundred thousand would take seconds."""

Tokens = Listed[int]


def _refuse_first_wrong_number(value: Any) -> Any:
    for key, number in value.items() if isinstance(value, dict) else ():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise PydanticCustomError("float_type", "the value of '{key}' is no number", {"key": str(key)[:_MAX_SHOWN]})
    return value


Numbers = Annotated[dict[str, float], pydantic.BeforeValidator(_refuse_first_wrong_number)]
"""Numbers by name, refused for the first that is none."""

# Members of unions are tagged with names in angle brackets, which errors leave out of the path.


class Body(BaseModel):
    """A body, or an object in it. What may stand in it is said by the table in ``protocol.fields``; other fields are
    refused: an option that is not understood must not be ignored in silence.

    Attributes:
        kinds: the objects of the table that it is made of; none if its own fields are all.
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    kinds: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _go_by_the_table(cls, data: Any) -> Any:
        """Drop fields without effect, rename others, refuse the rest."""
        if not isinstance(data, dict):
            return data
        own, table, limited = _rules_of(cls)
        kept: dict[str, Any] = {}
        for field in limited:
            _check_value(field, data.get(field.name))
        for name, value in data.items():
            if name in own:
                kept[name] = value
                continue
            rule = table.get(name)
            if rule is None:
                if cls.model_config.get("extra") == "forbid":
                    raise _unknown(str(name)[:_MAX_SHOWN], [*own, *table])
            elif rule.use is Use.ALIAS:
                _rename(kept, data, rule, value)
            elif rule.use is Use.REFUSED and not asks_for_nothing(rule, value):
                raise _unsupported(name, rule.text)
            elif rule.use is Use.TAKEN and value is not None:
                note_taken(name, rule.text)
        return kept


class History(Body):
    """An object that clients send back as they got it, here or elsewhere: fields that nobody knows are passed over."""

    model_config = ConfigDict(strict=True, extra="ignore")


@functools.cache
def _rules_of(model: type[Body]) -> tuple[frozenset[str], dict[str, Field], tuple[Field, ...]]:
    """Names of a model's own fields, its part of the table, and those of its fields that take some values only."""
    own = frozenset(field.alias or name for name, field in model.model_fields.items())
    table = fields_of(model.kinds)
    return own, table, tuple(field for name, field in table.items() if name in own and field.only)


def _check_value(field: Field, value: Any) -> None:
    """Refuse a value that is not supported, before the fields that come with it are found to be unknown."""
    if isinstance(value, str) and value not in field.only:
        raise _unsupported(field.name, field.otherwise.format(value=repr(value[:_MAX_SHOWN])))


def _rename(kept: dict[str, Any], data: dict[str, Any], field: Field, value: Any) -> None:
    if value is None:
        return
    if data.get(field.target) is not None:
        raise _unsupported(field.name, f"{field.name} and {field.target} mean the same; give one of them")
    kept[field.target] = value


def _unknown(name: str, known: list[str]) -> PydanticCustomError:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean '{close[0]}'?" if close else "docs/server.md lists the known ones"
    return PydanticCustomError("unknown_parameter", "unknown parameter '{name}'; {hint}", {"name": name, "hint": hint})


def _unsupported(name: str, sentence: str) -> PydanticCustomError:
    return PydanticCustomError("unsupported", "{sentence}", {"name": name, "sentence": sentence})


def _kind_of_prompt(value: Any) -> str:
    """Which form a prompt has; a list goes by its first entry."""
    if not isinstance(value, list):
        return "<text>"
    first = value[0] if value else None
    if isinstance(first, str):
        return "<texts>"
    return "<token lists>" if isinstance(first, list) else "<tokens>"


def text_or_list(value: Any) -> str:
    """Which of two forms a value has."""
    return "<list>" if isinstance(value, list) else "<text>"


TextOrTexts = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[Listed[str], Tag("<list>")], Discriminator(text_or_list)
]
"""A text or a list of texts."""

Prompt = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[Listed[str], Tag("<texts>")]
    | Annotated[Tokens, Tag("<tokens>")]
    | Annotated[Listed[Tokens], Tag("<token lists>")],
    Discriminator(_kind_of_prompt),
]
"""A text, a list of texts, token ids, or a list of lists of token ids."""
