"""The body of ``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from headway.server.protocol.base import Body, History, Listed, text_or_list
from headway.server.protocol.generation import GenerationBody
from headway.server.protocol.tools import (
    CalledFunction,
    FunctionChoice,
    FunctionDefinition,
    Tool,
    ToolCall,
    ToolChoice,
)
from headway.server.tools.history import arguments_for_template

Word = Annotated[str, Field(max_length=64)]
"""One out of a list that grows."""


class ContentPart(Body):
    """A part of a message's content; only text can be read here."""

    kinds = ("part",)

    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> ContentPart:
        if getattr(self, self.type) is None:
            raise PydanticCustomError(
                "missing", "a part of type '{kind}' must have the field {kind}", {"kind": self.type}
            )
        return self

    @property
    def shown(self) -> str:
        """What the model reads of it."""
        return (self.text if self.type == "text" else self.refusal) or ""


Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[Listed[ContentPart], Tag("<list>")], Discriminator(text_or_list)
]
"""A text, or a list of parts."""


class ChatMessage(History):
    """One message."""

    kinds = ("message",)

    role: str = Field(min_length=1)
    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Listed[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None

    def as_template_input(self) -> dict[str, Any]:
        """What a chat template gets. Templates of models that reason decide which reasoning they show again."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part.shown for part in content)
        role = "tool" if self.role == "function" else self.role  # the older form of the same
        message: dict[str, Any] = {"role": role, "content": content or self.refusal or ""}
        if self.name is not None:
            message["name"] = self.name
        reasoning = self.reasoning_content or self.reasoning
        if reasoning:
            message["reasoning_content"] = reasoning
        calls = self.tool_calls or []
        if self.function_call is not None:
            calls = [*calls, ToolCall(function=self.function_call)]
        if calls:
            message["tool_calls"] = [_call_as_template_input(call) for call in calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


def _call_as_template_input(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": arguments_for_template(call.function.arguments)}
    return {"id": call.id, "type": "function", "function": function}


class Thinking(Body):
    """Whether to think before the answer."""

    kinds = ("thinking",)

    type: Word


class ChatBody(GenerationBody):
    """Answer a conversation."""

    kinds = ("generation", "chat")

    messages: Listed[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Listed[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    functions: Listed[FunctionDefinition] | None = None
    function_call: FunctionChoice | None = None

    # For the chat template.
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: Word | None = None
    include_reasoning: bool | None = None
    verbosity: Word | None = None
    enable_thinking: bool | None = None
    thinking: Thinking | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def with_defaults(self, defaults: Mapping[str, Any]) -> Self:
        if self.max_completion_tokens is None:
            return super().with_defaults(defaults)
        return super().with_defaults({name: value for name, value in defaults.items() if name != "max_tokens"})
