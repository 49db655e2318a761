"""What all bodies have in common: strict types, and no field that is not known."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Tag, model_validator
from pydantic_core import PydanticCustomError

Tokens = list[int]
# Members of unions are tagged with names in angle brackets, which errors leave out of the path.


class Body(BaseModel):
    """A body. Unknown fields are refused: an option that is not understood must not be ignored in silence."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields(cls, data: Any) -> Any:
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for name in data if isinstance(data, dict) else ():
            if name not in known:
                close = difflib.get_close_matches(str(name), known, n=1)
                hint = f"did you mean '{close[0]}'?" if close else "docs/server.md lists the known ones"
                raise PydanticCustomError(
                    "unknown_parameter", "unknown parameter '{name}'; {hint}", {"name": str(name), "hint": hint}
                )
        return data


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
    Annotated[str, Tag("<text>")] | Annotated[list[str], Tag("<list>")], Discriminator(text_or_list)
]
"""A text or a list of texts."""

Prompt = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[str], Tag("<texts>")]
    | Annotated[Tokens, Tag("<tokens>")]
    | Annotated[list[Tokens], Tag("<token lists>")],
    Discriminator(_kind_of_prompt),
]
"""A text, a list of texts, token ids, or a list of lists of token ids."""
