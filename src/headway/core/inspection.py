"""A copy of all there is to see of a scheduler between two steps, for whoever explains or draws it elsewhere.

Costs time in proportion to the live requests and the blocks, so it is made when somebody asks, not per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headway.core.plan import Int32, Int64
from headway.core.reasons import ReasonCode, WaitReason
from headway.core.request import Status
from headway.core.state import SchedulerState
from headway.core.tokens import REASON_OF_NUMBER
from headway.kv.stats import PoolStats, PrefixStats

FREE, CACHED, SHARED, DRAINING = -1, -2, -3, -4
"""Owners of blocks that are no slots: nobody; nobody, but a prefix can find it; several rows; ended requests."""


@dataclass(frozen=True)
class Rows:
    """Running requests in policy order, one entry each.

    Attributes:
        request_ids: names.
        handles: int64[n].
        arrival_s: float64[n], when they came, on the engine's clock.
        slots, num_prompt_tokens, known, computed, inflight, end_len, held, num_cached_tokens, num_preemptions:
            int32[n], as in ``core/columns.py`` and ``core/request.py``.
        reasons: int8[n], numbers of reasons; 0 for a row that was served in the last step.
    """

    request_ids: tuple[str, ...]
    handles: Int64
    arrival_s: npt.NDArray[np.float64]
    slots: Int32
    num_prompt_tokens: Int32
    known: Int32
    computed: Int32
    inflight: Int32
    end_len: Int32
    held: Int32
    num_cached_tokens: Int32
    num_preemptions: Int32
    reasons: npt.NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.slots)


class Waiter(NamedTuple):
    """A live request without a slot, with the attributes it has in ``core/request.py``."""

    handle: int
    request_id: str
    status: Status
    arrival_s: float
    num_prompt_tokens: int
    tokens: Int32
    num_swapped_tokens: int
    num_cached_tokens: int
    num_preemptions: int


_WAITER = attrgetter(*Waiter._fields)


@dataclass(frozen=True)
class StepReasons:
    """Who was not served in the last step, and why, as the scheduler keeps it: for looking at, not for keeping.

    Attributes:
        step: its number.
        own: handle -> reason, of waiting requests with one of their own.
        rest: of all other waiting requests.
        rows: int8[slots], by slot, numbers of reasons; 0 for rows that were served, anything where there is no row.
    """

    step: int
    own: Mapping[int, WaitReason]
    rest: ReasonCode
    rows: npt.NDArray[np.int8]


@dataclass(frozen=True)
class Pool:
    """The KV memory.

    Attributes:
        num_blocks, num_free, num_free_cached: blocks; cached ones that nobody holds are free.
        owners: int32[num_blocks], owner of block ``i + 1``: a slot, or one of the negative numbers above.
        num_entries: of the prefix index.
        stats, prefix: counters.
        num_host_blocks, num_host_free: blocks of the host tier; 0 without one.
    """

    num_blocks: int
    num_free: int
    num_free_cached: int
    owners: Int32
    num_entries: int
    stats: PoolStats
    prefix: PrefixStats
    num_host_blocks: int
    num_host_free: int


@dataclass(frozen=True)
class Inspection:
    """Everything at one moment; nothing in it changes any more.

    Attributes:
        step: number of the last step.
        rows: running requests.
        waiting: in the order of the queue.
        pool: the KV memory.
        num_draining: slots of ended requests that a step in flight still touches.
    """

    step: int
    rows: Rows
    waiting: tuple[Waiter, ...]
    pool: Pool
    num_draining: int
    _own: Mapping[int, WaitReason]
    _rest: ReasonCode

    def reason_of_row(self, row: int) -> WaitReason | None:
        """Why running request ``row`` was not served in the last step; ``None`` if it was."""
        number = int(self.rows.reasons[row])
        return WaitReason(REASON_OF_NUMBER[number], self.step) if number else None

    def reason_of_waiter(self, place: int) -> WaitReason:
        """Why the request at ``place`` in the queue waits."""
        own = self._own.get(self.waiting[place].handle)
        return own if own is not None else WaitReason(self._rest, self.step, need=place)

    @property
    def num_swapped(self) -> int:
        """Waiting requests whose KV is on the host."""
        return sum(waiter.status is Status.SWAPPED for waiter in self.waiting)

    def waiting_counts(self) -> dict[ReasonCode, int]:
        """Requests in the queue by reason; all reasons, in their order."""
        counts = dict.fromkeys(ReasonCode, 0)
        for reason in self._own.values():
            counts[reason.code] += 1
        counts[self._rest] += len(self.waiting) - len(self._own)
        return counts

    def row_counts(self) -> dict[ReasonCode, int]:
        """Running requests that were not served in the last step, by reason; all reasons, in their order."""
        return {code: int(np.count_nonzero(self.rows.reasons == number)) for number, code in REASON_OF_NUMBER.items()}


def inspect(state: SchedulerState) -> Inspection:
    """Copy what there is to see."""
    return Inspection(
        step=state.step,
        rows=_rows(state),
        waiting=tuple(map(Waiter._make, map(_WAITER, state.waiting))),
        pool=_pool(state),
        num_draining=state.columns.num_draining,
        _own=dict(state.passed),
        _rest=state.rest_reason,
    )


def step_reasons(state: SchedulerState) -> StepReasons:
    """Look at the reasons of the last step; copies nothing."""
    return StepReasons(state.step, state.passed, state.rest_reason, state.columns.reason)


def _rows(state: SchedulerState) -> Rows:
    columns, slots = state.columns, state.rows.slots
    requests = [columns.request(slot) for slot in slots.tolist()]
    return Rows(
        request_ids=tuple(request.request_id for request in requests),
        handles=columns.handle[slots],
        arrival_s=np.array([request.arrival_s for request in requests], np.float64),
        slots=slots,
        num_prompt_tokens=np.array([request.num_prompt_tokens for request in requests], np.int32),
        known=columns.known[slots],
        computed=columns.computed[slots],
        inflight=columns.inflight[slots],
        end_len=columns.end_len[slots],
        held=columns.held[slots],
        num_cached_tokens=np.array([request.num_cached_tokens for request in requests], np.int32),
        num_preemptions=np.array([request.num_preemptions for request in requests], np.int32),
        reasons=columns.reason[slots],
    )


def _pool(state: SchedulerState) -> Pool:
    pool, host = state.kv.pool, state.kv.host
    prefix = state.kv.stats
    return Pool(
        num_blocks=pool.num_blocks,
        num_free=pool.num_free,
        num_free_cached=pool.num_free_cached,
        owners=_owners(state),
        num_entries=pool.num_entries,
        stats=replace(pool.stats),
        prefix=PrefixStats(replace(prefix.first), replace(prefix.resumed)),
        num_host_blocks=host.pool.num_blocks if host is not None else 0,
        num_host_free=host.pool.num_free if host is not None else 0,
    )


def _owners(state: SchedulerState) -> Int32:
    """int32[num_blocks], who has each block."""
    columns, pool = state.columns, state.kv.pool
    owners = np.where(pool.is_cached, CACHED, FREE).astype(np.int32)
    owners[pool.ref_counts > 0] = DRAINING
    slots = state.rows.slots
    held = columns.held[slots]
    width = int(held.max(initial=0))
    holds = np.arange(width) < held[:, None]
    owner = np.broadcast_to(slots[:, None], holds.shape)[holds]
    for table in columns.tables:
        owners[table[slots, :width][holds]] = owner
    owners[pool.ref_counts > 1] = SHARED
    return owners[1:]
