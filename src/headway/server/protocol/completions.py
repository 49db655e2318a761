"""The body of ``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from headway.server.protocol.base import Prompt
from headway.server.protocol.generation import GenerationBody


class CompletionBody(GenerationBody):
    """Continue one or several prompts."""

    kinds = ("generation", "completion")

    prompt: Prompt
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None

    def with_defaults(self, defaults: Mapping[str, Any]) -> Self:
        # How long a completion is without a word about it belongs to the API, not to the model.
        return super().with_defaults({name: value for name, value in defaults.items() if name != "max_tokens"})
