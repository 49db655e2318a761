"""Rule 3 of the step (docs/design/step.md): blocks for the grants, and who gives way when they are short."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.core.plan import Int32
from headway.core.preemption import preempt, victim_cost
from headway.core.reasons import ReasonCode
from headway.core.request import FinishReason
from headway.core.state import SchedulerState
from headway.core.tokens import REASON_NUMBER, Grants


class ReleaseCount:
    """Counts how many blocks would become free if some rows left, one row after the other.

    A shared block becomes free only with the last of the rows that hold it.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._columns = state.columns
        self._refs = state.kv.pool.ref_counts
        self.dropped: Int32 = np.zeros_like(self._refs)

    def freed_by(self, slot: int) -> int:
        """Blocks that would become free if this row left as well."""
        ids = self._ids(slot)
        return int(np.count_nonzero(self._refs[ids] - self.dropped[ids] == 1))

    def drop(self, slot: int) -> None:
        """Count this row as gone."""
        self.dropped[self._ids(slot)] += 1

    def num_unheld(self, block_ids: Int32) -> int:
        """How many of these blocks nobody would hold; null blocks are not counted."""
        unheld = (self._refs[block_ids] == self.dropped[block_ids]) & (block_ids != 0)
        return int(np.count_nonzero(unheld))

    def _ids(self, slot: int) -> Int32:
        return np.concatenate(self._columns.block_ids(slot))


def fit_blocks(state: SchedulerState, grants: Grants) -> None:
    """Make the grants fit into the free blocks, then take the blocks."""
    columns, size, groups = state.columns, state.cache.block_size, state.cache.num_groups
    due = -(-(grants.computed + grants.grant) // size) - columns.held[grants.slots]
    due[due < 0] = 0
    due[grants.grant == 0] = 0
    total = int(due.sum()) * groups
    if total == 0:
        return
    if total > state.kv.pool.num_free:
        _Shortage(state, grants, due * groups).resolve()
        due = -(-(grants.computed + grants.grant) // size) - columns.held[grants.slots]
        due[grants.grant == 0] = 0
    rows = np.flatnonzero(due > 0)
    if len(rows):
        grants.new_blocks = state.append_blocks(grants.slots[rows], due[rows])


@dataclass
class _Shortage:
    """One walk from the tail of the policy order: trim, pass over or preempt until the rest fits."""

    state: SchedulerState
    grants: Grants
    need: Int32

    def resolve(self) -> None:
        state, grants = self.state, self.grants
        grants.short = True
        self.avail = state.kv.pool.num_free
        self.total = int(self.need.sum())
        self.release = ReleaseCount(state)
        self.victims: list[int] = []
        for row in self._walk():
            if self.total <= self.avail or self._trim(row):
                break
            if row > 0 and self._is_victim(row):
                self._make_victim(row)
            elif self.need[row] > 0:
                self._drop_grant(row, ReasonCode.KV_SHORT)
        self._settle()

    def _walk(self) -> list[int]:
        """Rows in the order in which they give way; the first row in policy order always comes last."""
        rows = list(range(len(self.grants.slots) - 1, -1, -1))
        state, slots = self.state, self.grants.slots.tolist()
        if state.config.victim == "newest" and not state.policy.ranks_victims:
            return rows

        def gives_way(row: int) -> tuple[int, float, int]:
            slot = slots[row]
            cost = victim_cost(state, slot)
            rank = state.policy.victim_rank(state.columns.request(slot), cost) if state.policy.ranks_victims else cost
            return (-int(state.columns.urgency[slot]), rank, -row)

        return [*sorted(rows[:-1], key=gives_way), 0]

    def _trim(self, row: int) -> bool:
        """Cut a chunk down to what the free blocks hold, if the others fit without it."""
        grants, cache = self.grants, self.state.cache
        if grants.chunk is None or not grants.chunk[row] or grants.grant[row] == 0:
            return False
        room = self.avail - (self.total - int(self.need[row]))
        if room < 0:
            return False
        held = int(self.state.columns.held[grants.slots[row]])
        fits = (held + room // cache.num_groups) * cache.block_size - int(grants.computed[row])
        keep = max(0, min(int(grants.grant[row]), fits))
        if keep == 0:
            self._drop_grant(row, ReasonCode.KV_SHORT)
        else:
            grants.grant[row] = keep
        return True

    def _is_victim(self, row: int) -> bool:
        """Whether preempting the row is allowed and frees something."""
        columns, slot = self.state.columns, int(self.grants.slots[row])
        if columns.frames[slot]:
            return False
        if columns.protected[slot]:
            growing = np.flatnonzero(self.need[:row] > 0)
            if not len(growing):
                return False
            first = self.grants.slots[growing[0]]
            if columns.urgency[first] >= columns.urgency[slot]:
                return False
        return bool(self.need[row] > 0) or self.release.freed_by(slot) > 0

    def _make_victim(self, row: int) -> None:
        slot = int(self.grants.slots[row])
        self.avail += self.release.freed_by(slot)
        self.release.drop(slot)
        self._drop_grant(row, ReasonCode.PREEMPTED)
        self.victims.append(row)

    def _drop_grant(self, row: int, reason: ReasonCode) -> None:
        self.total -= int(self.need[row])
        self.need[row] = 0
        self.grants.grant[row] = 0
        self.state.columns.reason[self.grants.slots[row]] = REASON_NUMBER[reason]

    def _settle(self) -> None:
        """Preempt the victims; a lone row that cannot grow ends."""
        state, grants = self.state, self.grants
        first = int(grants.slots[0])
        if self.victims:
            growing = np.flatnonzero(self.need > 0)
            by = state.columns.request(int(grants.slots[growing[0]] if len(growing) else first)).request_id
            preempt(state, [int(grants.slots[row]) for row in self.victims], by=by, cause="blocks")
        dropped = state.columns.reason[first] == REASON_NUMBER[ReasonCode.KV_SHORT]
        alone = len(state.rows) == 1 and state.columns.num_draining == 0 and state.columns.frames[first] == 0
        if dropped and alone:
            known = int(state.columns.known[first])
            message = (
                f"the sequence of {known} tokens cannot grow: it fills all"
                f" {state.kv.pool.num_blocks} KV blocks of {state.cache.block_size} tokens"
            )
            state.end_rows([first], [FinishReason.KV_CAPACITY], [message])
