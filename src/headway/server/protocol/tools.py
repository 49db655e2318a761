"""Tools in the body of a chat call."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from headway.server.protocol.base import Body, History, Listed


def _of_any_object(schema: Any) -> Any:
    return {} if schema is True else schema


class FunctionDefinition(Body):
    """A function that the model may call."""

    kinds = ("function",)

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: Annotated[dict[str, Any] | None, BeforeValidator(_of_any_object)] = None
    """JSON schema of its arguments, which are an object whether it says so or not; ``true`` is no limit."""
    strict: bool | None = None
    """Known to OpenAI; here the schema is kept to whenever the call is forced."""


class Tool(Body):
    """A tool; functions are the only kind."""

    kinds = ("tool",)

    type: Literal["function"]
    function: FunctionDefinition

    def as_template_input(self) -> dict[str, Any]:
        """What a chat template gets."""
        return {"type": "function", "function": self.function.model_dump(exclude_none=True, exclude={"strict"})}


class NameOnly(History):
    """Which function, with whatever else is said of it."""

    name: str


class FunctionName(Body):
    """Which function."""

    kinds = ("function_name",)

    name: str


class AllowedTool(History):
    """One of the call's tools, by name; the rest of its description is passed over."""

    type: Literal["function"]
    function: NameOnly


class AllowedTools(Body):
    """Tools out of which the model may or must choose."""

    kinds = ("allowed_tools",)

    mode: Literal["auto", "required"]
    tools: Listed[AllowedTool]


class ChosenTools(Body):
    """A tool that must be called, or some out of which the model chooses."""

    kinds = ("tool_choice",)

    type: Literal["function", "allowed_tools"]
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> ChosenTools:
        if getattr(self, self.type) is None:
            raise ValueError(f"a tool_choice of type '{self.type}' must have the field {self.type}")
        return self

    @property
    def names(self) -> list[str]:
        """Of the tools."""
        if self.function is not None:
            return [self.function.name]
        return [tool.function.name for tool in self.allowed_tools.tools] if self.allowed_tools is not None else []

    @property
    def forced(self) -> bool:
        """Whether there must be a call."""
        return self.allowed_tools is None or self.allowed_tools.mode == "required"


def word_or_tool(value: Any) -> str:
    """Which of two forms a choice has."""
    return "<word>" if isinstance(value, str) else "<tool>"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")] | Annotated[ChosenTools, Tag("<tool>")],
    Discriminator(word_or_tool),
]
"""Whether tools may or must be called, or which."""


FunctionChoice = Annotated[
    Annotated[Literal["none", "auto"], Tag("<word>")] | Annotated[FunctionName, Tag("<tool>")],
    Discriminator(word_or_tool),
]
"""The older form of a choice."""


class CalledFunction(History):
    """A function that was called, in a message of the model's."""

    kinds = ("called_function",)

    name: str
    arguments: str | None = None


class ToolCall(History):
    """A call in a message of the model's."""

    kinds = ("tool_call",)

    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction
