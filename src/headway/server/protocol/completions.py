"""The body of ``POST /v1/completions``."""

from __future__ import annotations

from headway.server.protocol.base import Prompt
from headway.server.protocol.generation import GenerationBody


class CompletionBody(GenerationBody):
    """Continue one or several prompts."""

    kinds = ("generation", "completion")

    prompt: Prompt
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
