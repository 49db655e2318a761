"""What clients get: plain records, all lengths in delivered tokens, all times in seconds of the engine's clock."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.logprobs import TokenLogprobs
from headway.core.request import RequestRefused

REFUSED = "refused"
"""Finish reason of a request that never entered the engine; the others are those of ``core.request.FinishReason``."""


Special = tuple[int, str]
"""A special token that left no text: where in the text it would stand, in characters, and what its text would be."""


@dataclass(frozen=True)
class RequestMetrics:
    """How one request fared (docs/metrics.md defines each with its symbol). ``None`` where it does not apply.

    Attributes:
        arrival_s: when it was added, on the engine's clock.
        queue_s: from arrival to the first admission.
        ttft_s: from arrival to the first token.
        tpot_s: mean time per output token after the first.
        e2e_s: from arrival to the end.
        num_prompt_tokens: tokens of the prompt.
        num_output_tokens: tokens delivered; prompt and this are the usage.
        num_cached_tokens: prompt tokens whose KV was found in the prefix cache at the first admission.
        num_chunks: steps that computed tokens of the prompt, or after a preemption computed tokens again.
        num_preemptions: how often it lost its slot.
    """

    arrival_s: float
    queue_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_chunks: int
    num_preemptions: int


@dataclass(frozen=True)
class RequestError:
    """Why a request was refused or failed, for programs.

    Attributes:
        kind: "refused" for a request that can never be served, else the finish reason.
        message: a sentence for people.
        field: what is wrong with it ("prompt", "request_id", ...); empty if no input is to blame.
        value: the number or name given.
        limit: the limit it exceeds, if there is one.
    """

    kind: str
    message: str
    field: str = ""
    value: object = None
    limit: int | None = None

    @staticmethod
    def of_refusal(refusal: RequestRefused) -> RequestError:
        """The same facts as the exception."""
        return RequestError(REFUSED, str(refusal), refusal.field, refusal.value, refusal.limit)


@dataclass(frozen=True)
class CompletionOutput:
    """The generated side of a request; text, ids and log probabilities end at the same place.

    Attributes:
        text: without the stop string, unless it was asked for.
        token_ids: the tokens of the text, and the end-of-text or stop token that ended it, if one did.
        finish_reason: "stop", "length", "abort", "error", "kv_capacity" or "refused".
        stop_reason: the stop string or stop token id that ended it, if one did.
        logprobs: per token, if asked for.
        specials: special tokens that left no text, in order; for those who look for tool calls or reasoning.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprobs | None, ...] | None = None
    specials: tuple[Special, ...] = ()


@dataclass(frozen=True)
class RequestOutput:
    """A request that has ended.

    Attributes:
        request_id: its name.
        prompt: the prompt as text, if it was given as text.
        prompt_token_ids: the prompt as tokens; empty if it was refused before it had any.
        outputs: one completion.
        prompt_logprobs: per prompt token, if asked for; ``None`` entries were not computed, as the first never is.
        metrics: ``None`` if it was refused.
        error: set if the finish reason is "refused", "error" or "kv_capacity".
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    metrics: RequestMetrics | None = None
    error: RequestError | None = None

    @property
    def text(self) -> str:
        """Text of the first completion."""
        return self.outputs[0].text

    @property
    def finish_reason(self) -> str:
        """Finish reason of the first completion."""
        return self.outputs[0].finish_reason


@dataclass(frozen=True)
class RequestUpdate:
    """What one step brought for one request. The parts joined are exactly the final output.

    Attributes:
        request_id: whose.
        text, token_ids, logprobs: what is new; log probabilities are ``None`` unless asked for.
        output: the whole output, with the last update.
        specials: special tokens that left no text, by their place in this ``text``.
        handle: the number that the engine gave the request and gives no other; -1 if it never entered.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...] | None = None
    output: RequestOutput | None = None
    specials: tuple[Special, ...] = ()
    handle: int = -1
