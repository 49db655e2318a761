"""Tools in the body of a chat call."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from headway.server.protocol.base import Body


class FunctionDefinition(Body):
    """A function that the model may call."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments."""
    strict: bool | None = None
    """Known to OpenAI; here the schema is kept to whenever the call is forced."""


class Tool(Body):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionDefinition

    def as_template_input(self) -> dict[str, Any]:
        """What a chat template gets."""
        return {"type": "function", "function": self.function.model_dump(exclude_none=True, exclude={"strict"})}


class FunctionName(Body):
    """Which function."""

    name: str


class NamedTool(Body):
    """A tool that must be called."""

    type: Literal["function"]
    function: FunctionName


def _word_or_tool(value: Any) -> str:
    return "<word>" if isinstance(value, str) else "<tool>"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")] | Annotated[NamedTool, Tag("<tool>")],
    Discriminator(_word_or_tool),
]
"""Whether tools may or must be called, or which one must be."""


class CalledFunction(BaseModel):
    """A function that was called, in a message of the model's."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call in a message of the model's."""

    model_config = ConfigDict(strict=True, extra="ignore")

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
