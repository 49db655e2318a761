"""Rule 1 and 2 of the step (docs/design/step.md): which rows may run, and how many tokens each gets."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from headway.core.plan import Bool, Int32
from headway.core.reasons import ReasonCode
from headway.core.state import SchedulerState

REASON_NUMBER = {code: number for number, code in enumerate(ReasonCode, start=1)}
REASON_OF_NUMBER = {number: code for code, number in REASON_NUMBER.items()}


@dataclass
class Grants:
    """The step in the making: running rows in policy order with what they want and get. Provisional until the plan.

    Attributes:
        slots, computed, target, grant: int32[n].
        chunk: bool[n], wants more than one token; ``None`` when no row does, as in steady decode.
        long: bool[n], a chunk under the long-prefill cap; ``None`` if nothing is capped.
        left: tokens of the budget not granted yet.
        long_left: tokens of the long share not granted yet.
        capped: whether the long-prefill cap applies in this step.
        held: whether the cadence holds prefill back in this step.
        short: whether blocks were short, so that nothing is admitted.
        carries_prefill: whether prefill was admitted in this step.
        new_blocks: slots, index and ids (one column per group) of blocks that running rows took.
        displaced: slots preempted for a more urgent request after blocks were taken.
    """

    slots: Int32
    computed: Int32
    target: Int32
    grant: Int32
    chunk: Bool | None
    long: Bool | None
    left: int
    long_left: int
    capped: bool
    held: bool
    short: bool = False
    carries_prefill: bool = False
    new_blocks: tuple[Int32, Int32, Int32] | None = None
    displaced: list[int] = field(default_factory=list)


def grant_tokens(state: SchedulerState) -> Grants:
    """Grant every eligible decode its token, then prompt chunks in policy order from what is left."""
    columns, config = state.columns, state.config
    slots = state.rows.slots
    computed = columns.computed[slots]
    target = columns.known[slots]
    eligible: Bool | None = None
    if state.num_plans_inflight:
        target = target + columns.placeholders[slots]
        eligible = _not_ending(state, slots, target, computed)
    want = target - computed
    decode = want == 1 if eligible is None else (want == 1) & eligible
    num_decode = int(np.count_nonzero(decode))
    held = _held_by_cadence(state, num_decode)
    left = config.max_num_batched_tokens - num_decode
    capped = config.long_prefill_token_threshold > 0 and len(state.live) > 1
    grant = decode.astype(np.int32)
    grants = Grants(slots, computed, target, grant, None, None, left, max(1, left // 2), capped, held)
    if num_decode < len(slots):
        chunk = want > 1 if eligible is None else (want > 1) & eligible
        if chunk.any():
            grants.chunk = chunk
            _grant_chunks(state, grants, want)
    return grants


def _not_ending(state: SchedulerState, slots: Int32, target: Int32, computed: Int32) -> Bool:
    """Rows that need another step even if everything in flight succeeds; the others get reason ``in_flight``."""
    columns = state.columns
    ending = (columns.placeholders[slots] > 0) & (target >= columns.end_len[slots])
    waiting = ending | (target == computed)
    columns.reason[slots[waiting]] = REASON_NUMBER[ReasonCode.IN_FLIGHT]
    eligible: Bool = ~waiting
    return eligible


def _held_by_cadence(state: SchedulerState, num_decode: int) -> bool:
    interval, since = state.config.prefill_schedule_interval, state.steps_since_prefill
    return interval > 1 and num_decode > 0 and since is not None and since < interval - 1


def _grant_chunks(state: SchedulerState, grants: Grants, want: Int32) -> None:
    """Chunks by prefix sum and clip; with the cap, long ones are first clipped to their share."""
    columns = state.columns
    rows = np.flatnonzero(grants.chunk)  # type: ignore[arg-type]
    if grants.held:
        columns.reason[grants.slots[rows]] = REASON_NUMBER[ReasonCode.PREFILL_CADENCE]
        grants.chunk = None
        return
    wanted = want[rows]
    if grants.capped:
        threshold = state.config.long_prefill_token_threshold
        long = wanted > threshold
        grants.long = np.zeros(len(grants.slots), np.bool_)
        grants.long[rows] = long
        share = _clip_in_order(np.where(long, np.minimum(wanted, threshold), 0), grants.long_left)
        wanted = np.where(long, share, wanted)
        given = _clip_in_order(wanted, grants.left)
        grants.long_left -= int(given[long].sum())
    else:
        long = None
        given = _clip_in_order(wanted, grants.left)
    grants.left -= int(given.sum())
    grants.grant[rows] = given
    if not given.all():
        unserved = given == 0
        columns.reason[grants.slots[rows[unserved]]] = REASON_NUMBER[ReasonCode.BUDGET_SPENT]
        if long is not None:
            left_at_its_turn = grants.left + given[::-1].cumsum()[::-1]
            capped = unserved & long & (left_at_its_turn > 0)
            columns.reason[grants.slots[rows[capped]]] = REASON_NUMBER[ReasonCode.LONG_PREFILL_CAP]


def _clip_in_order(wanted: Int32, budget: int) -> Int32:
    """Give each what it wants, in order, until the budget is spent: one prefix sum and one clip."""
    before = np.cumsum(wanted) - wanted
    granted: Int32 = np.clip(budget - before, 0, wanted).astype(np.int32)
    return granted
