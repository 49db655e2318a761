"""Rule 4 of the step (docs/design/step.md): who enters from the waiting queue, and whom it may displace."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np

from headway.core.blocks import ReleaseCount
from headway.core.events import Admitted
from headway.core.plan import AdmittedRow, Bool, Int32
from headway.core.reasons import ReasonCode, WaitReason
from headway.core.request import FinishReason, Request, Status
from headway.core.state import SchedulerState
from headway.core.tokens import REASON_NUMBER, Grants


class _Verdict(enum.Enum):
    """What the scan does after looking at one request."""

    ADMITTED = enum.auto()
    ENDED = enum.auto()
    PASSED = enum.auto()
    STOP = enum.auto()


@dataclass(frozen=True)
class Admission:
    """A request that entered in this step."""

    slot: int
    grant: int
    num_computed: int
    samples: bool
    resumed: bool


@dataclass(frozen=True)
class _Candidate:
    """A waiting request with what it would need.

    Attributes:
        hit_blocks: per group, the cached blocks it would start from.
        num_computed, want: tokens.
        long: whether the long-prefill cap applies to it.
        gate: blocks per group that must be there before it starts.
    """

    request: Request
    hit_blocks: tuple[Int32, ...]
    num_computed: int
    want: int
    long: bool
    gate: int

    @property
    def num_hit(self) -> int:
        return len(self.hit_blocks[0])


@dataclass
class Scan:
    """One pass over the waiting queue.

    ``memo`` remembers, from step to step, the head that did not fit and the versions of everything its look-up
    depended on: it is not looked up again until one of them changed.
    """

    state: SchedulerState
    grants: Grants
    memo: tuple[object, ...] | None
    admitted: list[Admission] = field(default_factory=list)

    def run(self) -> None:
        """Admit what may enter; leave a reason for everything else."""
        state, grants = self.state, self.grants
        waiting = state.waiting
        state.rest_reason = ReasonCode.QUEUE_POSITION
        if not len(waiting):
            return
        if grants.held or grants.short:
            state.rest_reason = ReasonCode.PREFILL_CADENCE if grants.held else ReasonCode.KV_SHORT
            return
        place = num_passed = 0
        while place < len(waiting) and num_passed < state.config.max_num_seqs:
            # Rows are displaced from the tail on, so the last one is the first in policy order: none behind it enters.
            if state.preempted and waiting[place].order_key > state.preempted[-1].order_key:
                break
            verdict = self._consider(waiting[place])
            if verdict is _Verdict.STOP:
                break
            if verdict is _Verdict.PASSED:
                place += 1
                num_passed += 1
            else:
                waiting.pop(place)

    # --- looking at one request ------------------------------------------------------------------------

    def _consider(self, request: Request) -> _Verdict:
        state = self.state
        may_displace = len(state.rows) > 0 and state.rows.keys[-1][0] > request.order_key[0]
        # An eviction frees nothing, but the hit it shortens may be in the making: then the request is passed over.
        versions = (request.handle, state.kv.pool.version, state.kv.pool.stats.evicted, state.watch.version)
        if self.memo is not None and self.memo[0] == versions and not may_displace:
            need = self.memo[1]
            assert isinstance(need, int)
            has_slot = state.columns.num_free_slots > 0
            return self._stop(request, ReasonCode.KV_SHORT if has_slot else ReasonCode.SLOTS_FULL, need)
        candidate = self._candidate(request)
        owner = self._computes_next_block(candidate)
        if owner is not None:
            return self._pass(request, ReasonCode.PREFIX_IN_FLIGHT, owner.request_id)
        if state.cache.num_groups * candidate.gate > state.kv.pool.num_blocks:
            message = f"its {request.num_tokens} tokens do not fit {state.kv.pool.num_blocks} KV blocks"
            state.end_waiting(request, FinishReason.KV_CAPACITY, message)
            return _Verdict.ENDED
        displaced = self._make_room(candidate, may_displace)
        if isinstance(displaced, WaitReason):
            if displaced.code is ReasonCode.KV_SHORT and not may_displace:
                self.memo = (versions, displaced.need)
            return self._stop(request, displaced.code, displaced.need)
        return self._grant(candidate, displaced)

    def _candidate(self, request: Request) -> _Candidate:
        state = self.state
        known = request.num_tokens
        limit = (known - 1) // state.cache.block_size if request.takes_hits else 0
        hit_blocks = state.kv.find_hit(request.block_hashes, limit)
        computed = len(hit_blocks[0]) * state.cache.block_size
        want = known - computed
        long = self.grants.capped and want > state.config.long_prefill_token_threshold
        gate = state.blocks_for(known)
        if request.num_preemptions:
            # One more, so that it grows at least once; but what fits alone runs to where it would have got alone.
            gate = max(gate, min(state.blocks_for(known + 1), state.kv.pool.num_blocks // state.cache.num_groups))
        return _Candidate(request, hit_blocks, computed, want, long, gate)

    def _computes_next_block(self, candidate: _Candidate) -> Request | None:
        """The row before this request in policy order that is about to publish its next block, if any."""
        state, request = self.state, candidate.request
        limit = (request.num_tokens - 1) // state.cache.block_size
        if not len(state.watch) or not request.takes_hits or candidate.num_hit >= limit:
            return None
        for slot in state.watch.slots(request.block_hashes[candidate.num_hit]):
            owner = state.columns.request(slot)
            if owner.order_key < request.order_key:
                return owner
        return None

    def _pass(self, request: Request, code: ReasonCode, by: str = "") -> _Verdict:
        self.state.passed[request.handle] = WaitReason(code, self.state.step, by=by)
        return _Verdict.PASSED

    def _stop(self, request: Request, code: ReasonCode, need: int = 0) -> _Verdict:
        free = self.state.kv.pool.num_free if code is ReasonCode.KV_SHORT else 0
        self.state.passed[request.handle] = WaitReason(code, self.state.step, need=need, free=free)
        return _Verdict.STOP

    # --- slots and blocks ------------------------------------------------------------------------------

    def _make_room(self, candidate: _Candidate, may_displace: bool) -> list[int] | WaitReason:
        """Rows to displace (none if there is room), tail first, or why it does not fit."""
        state = self.state
        pool, groups = state.kv.pool, state.cache.num_groups
        beyond_hit = groups * (candidate.gate - candidate.num_hit)
        need = beyond_hit + sum(pool.num_unheld(blocks) for blocks in candidate.hit_blocks)
        need += self._watermark(len(state.rows))
        has_slot = state.columns.num_free_slots > 0
        if has_slot and need <= pool.num_free:
            return []
        if may_displace:
            displaced = self._displaceable(candidate, beyond_hit)
            if displaced:
                return displaced
        return WaitReason(ReasonCode.KV_SHORT if has_slot else ReasonCode.SLOTS_FULL, state.step, need=need)

    def _watermark(self, num_rows: int) -> int:
        return int(self.state.config.watermark * self.state.kv.pool.num_blocks) if num_rows else 0

    def _displaceable(self, candidate: _Candidate, beyond_hit: int) -> list[int]:
        """The fewest rows from the tail, all less urgent, that make the request fit; empty if none do."""
        state = self.state
        columns, release = state.columns, ReleaseCount(state)
        avail = state.kv.pool.num_free
        chosen: list[int] = []
        for slot in reversed(state.rows.slots.tolist()):
            if columns.urgency[slot] <= candidate.request.order_key[0]:
                break
            if columns.frames[slot]:
                continue
            avail += release.freed_by(slot)
            release.drop(slot)
            chosen.append(slot)
            hits = sum(release.num_unheld(blocks) for blocks in candidate.hit_blocks)
            if beyond_hit + hits + self._watermark(len(state.rows) - len(chosen)) <= avail:
                return chosen
        return []

    # --- tokens ----------------------------------------------------------------------------------------

    def _grant(self, candidate: _Candidate, displaced: list[int]) -> _Verdict:
        """Decide the tokens; admit the request if it gets any."""
        grants, config = self.grants, self.state.config
        taken = self._row_mask(displaced)
        lower = self._less_urgent_chunks(candidate.request) & ~taken
        tokens = grants.left + int(grants.grant[taken | lower].sum())
        if not config.enable_chunked_prefill and candidate.want > tokens:
            return self._stop(candidate.request, ReasonCode.BUDGET_SPENT)
        grant = min(candidate.want, tokens)
        if candidate.long:
            long = grants.long if grants.long is not None else np.zeros_like(taken)
            long_tokens = grants.long_left + int(grants.grant[(taken | lower) & long].sum())
            grant = min(grant, config.long_prefill_token_threshold, long_tokens)
        if grant == 0 and tokens > 0:
            return self._pass(candidate.request, ReasonCode.LONG_PREFILL_CAP)
        if grant == 0:
            return self._stop(candidate.request, ReasonCode.BUDGET_SPENT)
        self._displace(candidate.request, displaced, taken)
        self._reclaim(candidate, grant, lower)
        self._admit(candidate, grant)
        return _Verdict.ADMITTED

    def _row_mask(self, slots: list[int]) -> Bool:
        return np.isin(self.grants.slots, slots) if slots else np.zeros(len(self.grants.slots), np.bool_)

    def _less_urgent_chunks(self, request: Request) -> Bool:
        grants = self.grants
        if grants.chunk is None:
            return np.zeros(len(grants.slots), np.bool_)
        return grants.chunk & (self.state.columns.urgency[grants.slots] > request.order_key[0])

    def _displace(self, request: Request, displaced: list[int], taken: Bool) -> None:
        if not displaced:
            return
        grants = self.grants
        grants.left += int(grants.grant[taken].sum())
        if grants.long is not None:
            grants.long_left += int(grants.grant[taken & grants.long].sum())
        grants.grant[taken] = 0
        grants.displaced += displaced
        self.state.preempt(displaced, by=request.request_id, cause="displaced")

    def _reclaim(self, candidate: _Candidate, grant: int, lower: Bool) -> None:
        """Take tokens back from chunks of less urgent rows, tail first, until the grant is covered."""
        grants = self.grants
        if candidate.long and grant > grants.long_left and grants.long is not None:
            given = self._trim(lower & grants.long, grant - grants.long_left)
            grants.long_left += given
            grants.left += given
        if grant > grants.left:
            long_before = int(grants.grant[grants.long].sum()) if grants.long is not None else 0
            grants.left += self._trim(lower, grant - grants.left)
            if grants.long is not None:
                grants.long_left += long_before - int(grants.grant[grants.long].sum())
        grants.left -= grant
        if candidate.long:
            grants.long_left -= grant

    def _trim(self, rows: Bool, tokens: int) -> int:
        grants, missing = self.grants, tokens
        for row in reversed(np.flatnonzero(rows).tolist()):
            if missing == 0:
                break
            given = min(missing, int(grants.grant[row]))
            if given == 0:
                continue
            grants.grant[row] -= given
            missing -= given
            if grants.grant[row] == 0:
                self.state.columns.reason[grants.slots[row]] = REASON_NUMBER[ReasonCode.BUDGET_SPENT]
        return tokens - missing

    # --- entering --------------------------------------------------------------------------------------

    def _admit(self, candidate: _Candidate, grant: int) -> None:
        state, request = self.state, candidate.request
        columns = state.columns
        resumed = request.num_preemptions > 0
        state.passed.pop(request.handle, None)
        slot = columns.enter(request, state.config.max_model_len)
        num_hit, computed = candidate.num_hit, candidate.num_computed
        for group, blocks in enumerate(candidate.hit_blocks):
            state.kv.pool.adopt(blocks)
            columns.tables[group][slot, :num_hit] = blocks
        columns.held[slot] = columns.published[slot] = num_hit
        until = candidate.gate if resumed else state.blocks_for(computed + grant)
        if until > num_hit:
            state.append_blocks(np.array([slot], np.int32), np.array([until - num_hit], np.int32))
        columns.computed[slot] = computed
        state.slot_of[request.handle] = slot
        state.rows.add(request.order_key, slot)
        request.move(Status.RUNNING)
        if state.cache.enable_prefix_caching and request.takes_hits:
            state.kv.count_hit(request.num_tokens, computed, first=not resumed)
            if num_hit < request.num_tokens // state.cache.block_size:
                state.watch.set(slot, request.block_hashes[num_hit])
        if not resumed:
            request.num_cached_tokens = computed
        if candidate.want > 1:
            self.grants.carries_prefill = True
        self.admitted.append(Admission(slot, grant, computed, grant == candidate.want, resumed))
        state.events.append(
            Admitted(request.handle, request.request_id, state.step, state.now, slot, computed, resumed)
        )


def admitted_row(state: SchedulerState, admission: Admission) -> AdmittedRow:
    """The full state of an admitted request for the executor."""
    columns, slot = state.columns, admission.slot
    request = columns.request(slot)
    return AdmittedRow(
        slot=slot,
        handle=request.handle,
        request_id=request.request_id,
        tokens=request.tokens,
        num_prompt_tokens=request.num_prompt_tokens,
        num_computed_tokens=admission.num_computed,
        block_ids=tuple(ids.copy() for ids in columns.block_ids(slot)),
        sampling=request.sampling,
        resumed=admission.resumed,
    )
