"""Fields that the completion and the chat endpoint share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from headway.server.protocol.base import Body, Listed, Numbers, TextOrTexts
from headway.server.protocol.forms import ResponseFormat, StructuredOutputs


class StreamOptions(Body):
    """How to stream."""

    kinds = ("stream_options",)

    include_usage: bool | None = None
    """A last chunk with the usage."""
    continuous_usage_stats: bool | None = None
    """The usage so far in every chunk."""


class GenerationBody(Body):
    """Fields of both generation endpoints. ``None`` stands for the default everywhere."""

    model: str | None = None
    n: int | None = None
    stop: TextOrTexts | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Numbers | None = None
    response_format: ResponseFormat | None = None

    # Not of OpenAI's.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: Listed[int] | None = None
    bad_words: Listed[str] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    """Seconds within which it must have begun."""

    # vLLM's names for the form of an output; at most one of these and response_format may be given.
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Listed[str] | None = None
    guided_grammar: str | None = None
    deadline_s: float | None = None
    slo: str | None = None

    user: str | None = None
    """Who asks, for the fair policy, where there are no API keys that say so."""

    def with_defaults(self, defaults: Mapping[str, Any]) -> Self:
        """The same with the model's sampling parameters, by name, where it does not give its own."""
        return self.model_copy(
            update={name: value for name, value in defaults.items() if getattr(self, name, value) is None}
        )
