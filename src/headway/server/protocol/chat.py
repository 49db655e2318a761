"""The body of ``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from headway.server.protocol.base import Body, text_or_list
from headway.server.protocol.generation import GenerationBody


class TextPart(Body):
    """A part of a message's content; only text can be read here."""

    type: Literal["text"]
    text: str


Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[TextPart], Tag("<list>")], Discriminator(text_or_list)
]
"""A text, or a list of parts."""


class ChatMessage(BaseModel):
    """One message. Other fields are passed over: clients send back the messages they got, with all their fields."""

    model_config = ConfigDict(strict=True, extra="ignore")

    role: str = Field(min_length=1)
    content: Content | None = None
    name: str | None = None

    def as_template_input(self) -> dict[str, Any]:
        """What a chat template gets."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        message: dict[str, Any] = {"role": self.role, "content": content or ""}
        if self.name is not None:
            message["name"] = self.name
        return message


class ChatBody(GenerationBody):
    """Answer a conversation."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
