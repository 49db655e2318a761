"""What happened to requests: the lifecycle events that metrics, logs, traces and pages are folded from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from headway.core.plan import Int32, Int64
from headway.core.request import FinishReason


@dataclass(frozen=True)
class Queued:
    """A request entered the waiting queue."""

    handle: int
    request_id: str
    step: int
    now: float
    num_prompt_tokens: int


@dataclass(frozen=True)
class Admitted:
    """A request entered a slot, for the first time or again.

    Attributes:
        num_cached_tokens: tokens of this admission taken from the prefix cache.
        resumed: whether it had run before.
        num_restored_tokens: tokens of this admission copied back from the host.
        num_recomputed_tokens: tokens that had KV before the preemption and are computed a second time.
    """

    handle: int
    request_id: str
    step: int
    now: float
    slot: int
    num_cached_tokens: int
    resumed: bool
    num_restored_tokens: int = 0
    num_recomputed_tokens: int = 0


@dataclass(frozen=True)
class Preempted:
    """A running request lost its slot and its blocks.

    Attributes:
        kind: "recompute" or "swap".
        by: the request it made room for; empty if that cannot be told.
        cause: "blocks" (growth of a request before it) or "displaced" (a more urgent request came).
        num_lost_tokens: computed tokens whose KV was given up (the prefix cache may give some back); 0 for a swap.
        num_copied_blocks: blocks that a swap copies to the host.
        predicted_recompute_s, predicted_swap_s: what the two kinds were predicted to cost, in seconds of device time;
            0 while nothing was measured.
    """

    handle: int
    request_id: str
    step: int
    now: float
    slot: int
    kind: str
    by: str
    cause: str
    num_lost_tokens: int
    num_copied_blocks: int = 0
    predicted_recompute_s: float = 0.0
    predicted_swap_s: float = 0.0


@dataclass(frozen=True)
class Finished:
    """A request ended; its slot and blocks are given back.

    Attributes:
        reason: why.
        stop_token_id: the stop token that ended it, if one did.
        message: a sentence for reasons that need one (errors, capacity).
    """

    handle: int
    request_id: str
    step: int
    now: float
    reason: FinishReason
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    stop_token_id: int | None = None
    message: str = ""


Event = Queued | Admitted | Preempted | Finished


@dataclass(frozen=True)
class StepOutput:
    """What one ``update`` delivers.

    Attributes:
        step: number of the step.
        rows: int32[m], index into the plan's rows for each request that got tokens.
        handles: int64[m], those requests.
        tokens: int32[m, w], delivered tokens, cut at the first stop; cells beyond ``counts`` are -1.
        counts: int32[m], how many, at least 1 each.
        finished: requests that ended in this update, in row order.
    """

    step: int
    rows: Int32
    handles: Int64
    tokens: Int32
    counts: Int32
    finished: tuple[Finished, ...] = field(default=())

    @staticmethod
    def empty(step: int) -> StepOutput:
        """An output without tokens."""
        zero = np.zeros(0, np.int32)
        return StepOutput(step, zero, np.zeros(0, np.int64), np.zeros((0, 1), np.int32), zero)
