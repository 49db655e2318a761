"""After an exception while requests were admitted: everything is derived anew from where each request is.

An exception may come at any line, in a policy of the user's as well as for lack of memory. So nothing is undone step by
step. What counts is which request is in which slot, with which blocks in its tables; reference counts, free lists, the
order of rows, the queue and the watch all follow from that. The prefix indexes are emptied: there is no telling how far
they got. The request that was looked at ends with an error, and nothing else is admitted in this step.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from headway.core.events import Finished, Preempted
from headway.core.plan import Int32
from headway.core.reasons import ReasonCode, WaitReason
from headway.core.request import FinishReason, Request, Status
from headway.core.state import SchedulerState
from headway.core.tokens import REASON_NUMBER, Grants


def recover(state: SchedulerState, grants: Grants, admitted: Collection[int], suspect: Request | None) -> None:
    """Bring the state in line again and end the suspect; the step goes on with what was granted and admitted so far.

    Args:
        grants: of the step in the making.
        admitted: slots of the requests that were admitted in this step for good.
        suspect: the request that was looked at; ``None`` if it was none in particular.
    """
    columns = state.columns
    for slot, request in enumerate(columns.requests):
        if request is not None and request is suspect:
            columns.vacate(slot)
    columns.recount()
    rows = {
        slot: request
        for slot, request in enumerate(columns.requests)
        if request is not None and not columns.draining[slot]
    }
    for slot, request in rows.items():
        _settle_row(state, slot, request)
    stayed = [slot for slot in rows if slot not in admitted]
    _cut_grants(state, grants, np.array(stayed, np.int32))
    _settle_waiting(state, rows, suspect)
    _rebuild_pools(state)
    # A slot that was to be released and is not free is either taken anew, or was never left.
    state.released = [slot for slot in dict.fromkeys(state.released) if slot not in stayed]
    if suspect is not None:
        state.passed.pop(suspect.handle, None)
    state.rest_reason = ReasonCode.ADMISSION_FAULT


def end_suspect(state: SchedulerState, request: Request, message: str) -> None:
    """End the request with an error, unless it has ended already."""
    state.live.pop(request.handle, None)
    state.names.pop(request.request_id, None)
    if any(isinstance(event, Finished) and event.handle == request.handle for event in state.events):
        return
    state.finish(request, FinishReason.ERROR, message)


def _settle_row(state: SchedulerState, slot: int, request: Request) -> None:
    """It is in its slot, so it runs: if it was about to be preempted, it is not."""
    columns = state.columns
    request.host_tables = ()
    request.num_swapped_tokens = 0
    if state.cache.enable_prefix_caching and request.takes_hits:
        state.extend_hashes(request, request.tokens)
    columns.num_hashes[slot] = len(request.block_hashes)


def _cut_grants(state: SchedulerState, grants: Grants, stayed: Int32) -> None:
    """Rows that left get nothing; rows that get no tokens give back the blocks they took for them in this step."""
    columns = state.columns
    grants.displaced = []
    grants.grant[~np.isin(grants.slots, stayed)] = 0
    idle = grants.slots[grants.grant == 0]
    if grants.new_blocks is not None:
        slots, index, block_ids = grants.new_blocks
        keeps = np.isin(slots, stayed) & (index < columns.held[slots])
        gives = keeps & np.isin(slots, idle)
        np.subtract.at(columns.held, slots[gives], 1)
        grants.new_blocks = tuple(array[keeps & ~gives] for array in (slots, index, block_ids))  # type: ignore[assignment]
    idle = idle[np.isin(idle, stayed)]
    columns.reason[idle[columns.reason[idle] == 0]] = REASON_NUMBER[ReasonCode.ADMISSION_FAULT]


def _settle_waiting(state: SchedulerState, rows: dict[int, Request], suspect: Request | None) -> None:
    """Rows and queue in order; who is in neither was just leaving its slot, and comes back by recompute."""
    state.rows.rebuild((request.order_key, slot) for slot, request in rows.items())
    state.slot_of = {request.handle: slot for slot, request in rows.items()}
    state.watch.clear_all()
    for slot in state.rows.slots.tolist():
        state.watch_row(slot)
    placed = {request.handle for request in (*rows.values(), *state.preempted)}
    state.waiting.rebuild(
        request
        for request in state.waiting
        if request is not suspect and request.handle not in placed and request.handle in state.live
    )
    placed |= {request.handle for request in state.waiting}
    for request in list(state.live.values()):
        if request is not suspect and request.handle not in placed:
            _finish_preemption(state, request)
    for request in state.preempted:
        _tell_preemption(state, request)


def _finish_preemption(state: SchedulerState, request: Request) -> None:
    """It left its slot and came nowhere: it waits, and is computed again."""
    columns, slot = state.columns, _last_slot(state, request)
    if request.status is not Status.PREEMPTED:
        request.move(Status.PREEMPTED)
    request.num_preemptions = max(1, request.num_preemptions)
    request.num_lost_tokens = int(columns.computed[slot])
    request.num_published_at_preemption = int(columns.published[slot]) * state.cache.block_size
    request.host_tables = ()
    request.num_swapped_tokens = 0
    state.preempted.append(request)


def _tell_preemption(state: SchedulerState, request: Request) -> None:
    """Give its reason and its event to a request that left its slot in this step, if it came to neither."""
    told = (event for event in state.events if isinstance(event, Preempted) and event.step == state.step)
    if any(event.handle == request.handle for event in told):
        return
    state.passed[request.handle] = WaitReason(ReasonCode.PREEMPTED, state.step)
    kind = "swap" if request.status is Status.SWAPPED else "recompute"
    name, slot, lost = request.request_id, _last_slot(state, request), request.num_lost_tokens
    state.events.append(Preempted(request.handle, name, state.step, state.now, slot, kind, "", "displaced", lost))


def _last_slot(state: SchedulerState, request: Request) -> int:
    """The slot it was in until this step; what the columns say of it is still there."""
    handles = state.columns.handle
    return next(slot for slot in reversed(state.released) if handles[slot] == request.handle)


def _rebuild_pools(state: SchedulerState) -> None:
    """Blocks by the tables; copies into blocks that nobody holds are called off."""
    columns = state.columns
    occupied = [slot for slot, request in enumerate(columns.requests) if request is not None]
    state.kv.pool.rebuild(table for slot in occupied for table in columns.block_ids(slot))
    held = state.kv.pool.ref_counts > 0
    state.swap_in = [copies[held[copies[:, 1]]] for copies in state.swap_in]
    state.host_releases.clear()
    if state.kv.host is not None:
        owners = (*state.waiting, *state.preempted)
        state.kv.host.pool.rebuild(table for request in owners for table in request.host_tables)
