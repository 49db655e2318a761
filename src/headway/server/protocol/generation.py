"""Fields that the completion and the chat endpoint share."""

from __future__ import annotations

from typing import Any

from headway.server.protocol.base import Body, TextOrTexts
from headway.server.protocol.forms import ResponseFormat


class StreamOptions(Body):
    """How to stream."""

    include_usage: bool | None = None
    """A last chunk with the usage."""
    include_obfuscation: bool | None = None
    """Known to OpenAI; without effect here."""


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
    logit_bias: dict[str, float] | None = None
    response_format: ResponseFormat | None = None

    # Not of OpenAI's.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    """Seconds within which it must have begun."""

    # vLLM's names for the form of an output; at most one of these and response_format may be given.
    structured_outputs: dict[str, Any] | None = None
    """One key out of json, json_object, regex, choice and grammar."""
    guided_json: dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    deadline_s: float | None = None
    slo: str | None = None

    user: str | None = None
    """Who asks, for the fair policy, where there are no API keys that say so."""

    # For OpenAI's own service: they say nothing about the output, so they are taken and not used.
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
