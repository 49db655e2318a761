"""The bodies of ``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from headway.server.protocol.base import Body, Listed, Tokens
from headway.server.protocol.chat import ChatMessage


class TokenizeBody(Body):
    """Text to token ids: of a prompt, or of a conversation as the chat template writes it."""

    model: str | None = None
    prompt: str | None = None
    messages: Listed[ChatMessage] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """Token ids to text."""

    model: str | None = None
    tokens: Tokens
    skip_special_tokens: bool | None = None
