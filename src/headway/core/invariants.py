"""What must be true between any two calls of the scheduler: tests check it after each, a live engine when idle."""

from __future__ import annotations

from headway.core.request import Status
from headway.core.state import SchedulerState
from headway.kv.block_pool import InvariantViolation


def check_state(state: SchedulerState) -> None:
    """Raise :class:`InvariantViolation` naming the first inconsistency found."""
    _check_slots(state)
    _check_counters(state)
    tables = [
        table
        for slot, request in enumerate(state.columns.requests)
        if request is not None
        for table in state.columns.block_ids(slot)
    ]
    state.kv.pool.check(tables)
    if state.kv.host is not None:
        state.kv.host.pool.check([table for request in state.waiting for table in request.host_tables])


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantViolation(message)


def _check_slots(state: SchedulerState) -> None:
    columns, limit = state.columns, state.config.max_num_seqs
    occupied = [slot for slot, request in enumerate(columns.requests) if request is not None]
    running = state.rows.slots.tolist()
    draining = [slot for slot in occupied if columns.draining[slot]]
    _require(len(running) <= limit, f"{len(running)} rows exceed max_num_seqs={limit}")
    _require(sorted(running + draining) == occupied, f"slots {occupied} are not rows {running} + draining {draining}")
    _require(columns.num_draining == len(draining), f"num_draining={columns.num_draining}, found {len(draining)}")
    _require(columns.num_free_slots + len(occupied) == limit, "free and occupied slots do not add up")
    _require(list(state.rows.keys) == sorted(state.rows.keys), "rows are not in policy order")
    for slot in running:
        request = columns.request(slot)
        _require(request.status is Status.RUNNING, f"{request!r} is in slot {slot}")
        _require(state.slot_of.get(request.handle) == slot, f"slot_of of {request!r} is wrong")
    waiting = [request.queue_key for request in state.waiting]
    _require(waiting == sorted(waiting), "waiting queue is not in policy order")
    for request in state.waiting:
        _require(
            request.status in (Status.WAITING, Status.PREEMPTED, Status.SWAPPED), f"{request!r} is in the waiting queue"
        )
    _require(len(state.live) == len(running) + len(waiting), f"{len(state.live)} live, {len(running)} + {len(waiting)}")
    names = {request.request_id: handle for handle, request in state.live.items()}
    _require(state.names == names, f"names {state.names} are not those of the live requests {names}")


def _check_counters(state: SchedulerState) -> None:
    columns, size = state.columns, state.cache.block_size
    for slot, request in enumerate(columns.requests):
        if request is None:
            continue
        known, computed = int(columns.known[slot]), int(columns.computed[slot])
        inflight, held = int(columns.inflight[slot]), int(columns.held[slot])
        where = f"slot {slot} ({request!r}): known={known} computed={computed} inflight={inflight} held={held}"
        _require(0 <= inflight <= computed, f"{where}: inflight out of range")
        _require(columns.frames[slot] >= 0 and columns.placeholders[slot] >= 0, f"{where}: negative frames")
        _require((columns.frames[slot] > 0) == (inflight > 0), f"{where}: frames and inflight disagree")
        _require(columns.placeholders[slot] <= columns.frames[slot], f"{where}: more samples than frames in flight")
        undelivered = columns.draining[slot]  # of a draining row, samples return that are never added to the known
        _require(undelivered or computed <= known + columns.placeholders[slot], f"{where}: computed beyond the target")
        _require(known <= state.config.max_model_len, f"{where}: longer than max_model_len")
        _require(computed <= held * size, f"{where}: computed beyond its blocks")
        _require(columns.published[slot] <= held, f"{where}: published blocks it does not hold")
