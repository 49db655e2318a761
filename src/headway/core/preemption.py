"""Taking running requests off their slots: by recompute, or by swapping their blocks to the host."""

from __future__ import annotations

import numpy as np

from headway.core.cost import PreemptionCost
from headway.core.events import Preempted
from headway.core.plan import Int32
from headway.core.reasons import ReasonCode, WaitReason
from headway.core.request import Request, Status
from headway.core.state import SchedulerState


def preempt(state: SchedulerState, slots: list[int], *, by: str, cause: str) -> None:
    """Preempt rows that no step in flight touches: slot and device blocks go back, progress is kept or dropped."""
    columns = state.columns
    state.rows.remove([columns.request(slot).order_key for slot in slots])
    for slot in slots:
        request = columns.request(slot)
        cost = predicted_cost(state, slot)
        num_computed = int(columns.computed[slot])
        state.write_back(slot, request)
        if columns.shares[slot] and state.cache.enable_prefix_caching:
            state.extend_hashes(request, request.tokens)
        copies = _swap_out(state, slot, request) if _wants_swap(state, cost) else None
        # Whoever is in a slot is running, so the slot is left before anything else is said (recovery.py).
        state.release(slot)
        request.num_lost_tokens = num_computed if copies is None else 0
        request.num_published_at_preemption = int(columns.published[slot]) * state.cache.block_size
        request.move(Status.PREEMPTED if copies is None else Status.SWAPPED)
        request.num_preemptions += 1
        state.preempted.append(request)
        state.passed[request.handle] = WaitReason(ReasonCode.PREEMPTED, state.step, by=by)
        state.events.append(
            Preempted(
                request.handle,
                request.request_id,
                state.step,
                state.now,
                slot,
                "recompute" if copies is None else "swap",
                by,
                cause,
                num_lost_tokens=request.num_lost_tokens,
                num_copied_blocks=0 if copies is None else len(copies),
                predicted_recompute_s=cost.recompute_s,
                predicted_swap_s=cost.swap_s,
            )
        )


def lose_host_blocks(state: SchedulerState, block_ids: Int32) -> None:
    """Host blocks turn out not to hold what was to be copied there: nobody starts from them any more.

    Swapped requests that would are recomputed, whichever of them was to be copied: one block serves several.
    """
    host = state.kv.host
    if host is None or not len(block_ids):
        return
    host.pool.forget(block_ids)
    ruined = [
        request
        for request in state.waiting
        if request.status is Status.SWAPPED and any(np.isin(table, block_ids).any() for table in request.host_tables)
    ]
    for request in ruined:
        state.waiting.remove(request)
        host.release(request.host_tables)
        request.host_tables = ()
        request.num_lost_tokens, request.num_swapped_tokens = request.num_swapped_tokens, 0
        request.move(Status.PREEMPTED)
        state.waiting.add(request)


def predicted_cost(state: SchedulerState, slot: int) -> PreemptionCost:
    """What preempting this row is predicted to cost, by kind."""
    columns, size = state.columns, state.cache.block_size
    num_computed = int(columns.computed[slot])
    num_published = int(columns.published[slot]) * size if columns.shares[slot] else 0
    return state.cost.predict(num_computed, num_published, state.blocks_for(num_computed) * state.cache.num_groups)


def victim_cost(state: SchedulerState, slot: int) -> float:
    """The cheaper kind's predicted seconds; in tokens to be computed again while nothing was measured."""
    cost = predicted_cost(state, slot)
    if not state.cost.forward.slope:
        published = int(state.columns.published[slot]) * state.cache.block_size
        return int(state.columns.computed[slot]) - state.cost.survival * published
    return min(cost.recompute_s, cost.swap_s) if _may_swap(state) else cost.recompute_s


def _may_swap(state: SchedulerState) -> bool:
    return state.kv.host is not None and state.config.preemption_mode != "recompute"


def _wants_swap(state: SchedulerState, cost: PreemptionCost) -> bool:
    """By mode; auto asks the cost model."""
    if not _may_swap(state):
        return False
    return state.config.preemption_mode == "swap" or state.cost.prefers_swap(cost)


def _swap_out(state: SchedulerState, slot: int, request: Request) -> Int32 | None:
    """Keep the row's blocks with content on the host; the copies to make, or ``None`` if they do not fit there."""
    columns, size = state.columns, state.cache.block_size
    num_computed = int(columns.computed[slot])
    if num_computed == 0 or state.kv.host is None:
        return None
    tables = [table[: state.blocks_for(num_computed)] for table in columns.block_ids(slot)]
    stored = state.kv.host.store(tables, request.block_hashes[: num_computed // size])
    if stored is None:
        return None
    request.host_tables, copies = stored
    request.num_swapped_tokens = num_computed
    if len(copies):
        state.swap_out.append(copies)
    return copies
