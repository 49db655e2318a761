"""What a client asks for: how to choose tokens and when to stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headway.config.options import Checked, ConfigError, option
from headway.config.structured import Structured

LEAST_TEMPERATURE = 2.0**-126
"""Below this, one over a temperature does not fit 32 bits; the likeliest token then has all the probability."""

MOST_BIAS = 1e30
"""Largest logit bias. Far above every logit, and far from where sums of them end in infinity."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams(Checked):
    """Parameters of one request, named as in the OpenAI API and its common extensions.

    The scheduler reads the stop rules (``max_tokens``, ``min_tokens``, ``stop_token_ids``, ``ignore_eos``), the
    sampler the rest; ``stop`` strings are found by the detokeniser.
    """

    max_tokens: int | None = option(
        16, help="Most tokens to generate; none means up to the model length.", unit="tokens", minimum=1
    )
    min_tokens: int = option(
        0, help="End-of-text and stop ids cannot be sampled before this many.", unit="tokens", minimum=0
    )
    temperature: float = option(
        1.0, help="0 is greedy, as is what is below 1.2e-38; larger is more random.", minimum=0.0, maximum=100.0
    )
    top_k: int = option(0, help="Sample among this many likeliest tokens; 0 means all.", minimum=0)
    top_p: float = option(
        1.0, help="Sample among the likeliest tokens of this total probability.", minimum=0.0, maximum=1.0
    )
    min_p: float = option(
        0.0, help="Drop tokens less likely than this share of the likeliest.", minimum=0.0, maximum=1.0
    )
    repetition_penalty: float = option(
        1.0, help="Above 1 makes tokens seen in prompt or output less likely.", minimum=0.01, maximum=100.0
    )
    presence_penalty: float = option(
        0.0, help="Subtracted once from the logit of every token in the output.", minimum=-2.0, maximum=2.0
    )
    frequency_penalty: float = option(0.0, help="Subtracted per occurrence in the output.", minimum=-2.0, maximum=2.0)
    logit_bias: Mapping[int, float] = option(
        MappingProxyType({}), help="Added to the logits of these token ids, from -1e30 to 1e30."
    )
    seed: int | None = option(None, help="Same seed, same tokens, whatever else is in the batch.")
    stop: tuple[str, ...] = option((), help="Strings that end the output; they are not returned.")
    stop_token_ids: tuple[int, ...] = option((), help="Token ids that end the output.")
    bad_words: tuple[str, ...] = option((), help="Words that must not come, neither with a space in front nor without.")
    bad_token_ids: tuple[tuple[int, ...], ...] = option(
        (), help="Token sequences that must not come; those of bad_words are added.", flag=False
    )
    ignore_eos: bool = option(False, help="Go on after the end-of-text token.")
    include_stop_str_in_output: bool = option(False, help="Return the stop string as well.")
    skip_special_tokens: bool = option(True, help="Leave special tokens out of the text.")
    logprobs: int | None = option(
        None, help="Return this many alternatives' log probabilities per output token.", minimum=0, maximum=100
    )
    prompt_logprobs: int | None = option(None, help="The same for the prompt's tokens.", minimum=0, maximum=100)
    structured: Structured | None = option(  # noqa: RUF009
        None, help="Form that the output must have: a JSON schema, regular expression, choice or grammar.", flag=False
    )

    def check(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ConfigError("min_tokens", self.min_tokens, f"must not exceed max_tokens ({self.max_tokens})")
        if self.top_p == 0.0:
            raise ConfigError("top_p", self.top_p, "must be above 0")
        if any(not text for text in self.stop):
            raise ConfigError("stop", self.stop, "must not contain an empty string")
        self._check_bad_words()
        if any(token < 0 for token in self.stop_token_ids):
            raise ConfigError("stop_token_ids", self.stop_token_ids, "must not contain negative ids")
        for token, bias in self.logit_bias.items():
            if not -MOST_BIAS <= bias <= MOST_BIAS:
                limit = f"values must be numbers from {-MOST_BIAS:g} to {MOST_BIAS:g}"
                raise ConfigError("logit_bias", {token: bias}, limit)
        if self.structured is not None and self.ignore_eos:
            raise ConfigError("ignore_eos", True, "cannot go with structured, where the end-of-text token is the end")

    def _check_bad_words(self) -> None:
        if any(token < 0 for tokens in self.bad_token_ids for token in tokens):
            raise ConfigError("bad_token_ids", self.bad_token_ids, "must not contain negative ids")
        if any(not word for word in self.bad_words):
            raise ConfigError("bad_words", self.bad_words, "must not contain an empty string")
        if not all(self.bad_token_ids):
            raise ConfigError("bad_token_ids", self.bad_token_ids, "must not contain an empty sequence")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < LEAST_TEMPERATURE
