"""Log probabilities of tokens, as the executor reports them and the API delivers them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenLogprobs:
    """One token and its likeliest rivals, under the model's own distribution (no penalty, bias or temperature).

    Attributes:
        token: the token sampled, or the prompt's token.
        logprob: its natural log probability.
        rank: its place by probability; 1 is the likeliest.
        top: (token, log probability) of the likeliest tokens, likeliest first, as many as were asked for.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class PromptLogprobs:
    """What one step computed of a prompt's log probabilities.

    A request that is preempted computes its prompt again and delivers the same entries again, so whoever collects
    them writes them by place, as ``collected[start : start + len(entries)] = entries``.

    Attributes:
        start: place in the prompt of the first entry.
        entries: one per prompt token; that of place 0 is ``None``, for nothing predicts it.
    """

    start: int
    entries: tuple[TokenLogprobs | None, ...]
