"""What all clients ask for, in the forms that they take."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, Field

from tests.clients.script import CITY, PERSON, WEATHER

MODEL = "scripted"


class Person(BaseModel):
    """A person."""

    name: str
    born: int = Field(ge=0, le=2100)
    tags: list[Literal["mathematics", "poetry", "music"]]


ADA = Person.model_validate(PERSON)


def weather(city: str) -> str:
    """The weather in a city."""
    assert city == CITY
    return WEATHER


PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER_TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": weather.__doc__, "parameters": PARAMETERS},
}


def look_up(name: str | None, arguments: str | None) -> str:
    """The result of a call."""
    assert name == "weather"
    return weather(**json.loads(arguments or ""))
