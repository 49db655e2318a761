"""The body of ``POST /v1/chat/completions``."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from headway.server.protocol.base import Body, History, text_or_list
from headway.server.protocol.generation import GenerationBody
from headway.server.protocol.tools import Tool, ToolCall, ToolChoice


class TextPart(Body):
    """A part of a message's content; only text can be read here."""

    kinds = ("part",)

    type: Literal["text"]
    text: str


Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[TextPart], Tag("<list>")], Discriminator(text_or_list)
]
"""A text, or a list of parts."""


class ChatMessage(History):
    """One message."""

    kinds = ("message",)

    role: str = Field(min_length=1)
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    def as_template_input(self) -> dict[str, Any]:
        """What a chat template gets.

        Raises:
            ValueError: the arguments of a tool call are no JSON object.
        """
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        message: dict[str, Any] = {"role": self.role, "content": content or ""}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = [_call_as_template_input(call) for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


def _call_as_template_input(call: ToolCall) -> dict[str, Any]:
    """A call with its arguments as an object, which templates write as JSON again."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of a call of {call.function.name!r} must be the text of a JSON object")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


class ChatBody(GenerationBody):
    """Answer a conversation."""

    kinds = ("generation", "chat")

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
