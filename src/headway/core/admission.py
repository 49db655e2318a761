"""Rule 4 of the step (docs/design/step.md): who enters from the waiting queue, and whom it may displace."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

import numpy as np

from headway.core.blocks import ReleaseCount
from headway.core.candidate import Candidate, Start, look_up
from headway.core.events import Admitted
from headway.core.plan import AdmittedRow, Bool
from headway.core.preemption import preempt
from headway.core.reasons import ReasonCode, WaitReason
from headway.core.recovery import end_suspect, recover
from headway.core.request import FinishReason, Request, Status
from headway.core.reservation import blocks_to_start, reserved_by
from headway.core.state import SchedulerState
from headway.core.tokens import REASON_NUMBER, Grants

Memo = dict[int, tuple[tuple[int, int, int], int]]
"""handle -> ((pool version, evictions, watch version), need)."""


class _Verdict(enum.Enum):
    """What the scan does after looking at one request."""

    ADMITTED = enum.auto()
    ENDED = enum.auto()
    PASSED = enum.auto()
    STOP = enum.auto()


@dataclass(frozen=True)
class Admission:
    """A request that entered in this step: its full state for the executor, and what it runs."""

    row: AdmittedRow
    grant: int
    samples: bool


@dataclass
class Scan:
    """One pass over the waiting queue.

    ``memo`` remembers, from step to step, the requests that did not fit: handle -> versions of everything their
    look-up depended on, and the blocks they needed. They are not looked up again until one of the versions changed.
    """

    state: SchedulerState
    grants: Grants
    last_memo: Memo
    memo: Memo = field(default_factory=dict)
    overtaken: list[Request] = field(default_factory=list)
    """Requests that wait for blocks while later ones are looked at."""
    admitted: list[Admission] = field(default_factory=list)
    _suspect: Request | None = None
    """The request that is looked at."""

    def run(self) -> None:
        """Admit what may enter; leave a reason for everything else.

        Whatever goes wrong ends the request that is looked at, and the scan, but nothing else.
        """
        try:
            self._scan()
            self._close()
        except Exception as error:
            self._recover(error)
            self._close()

    def _recover(self, error: Exception) -> None:
        state, suspect = self.state, self._suspect
        state.faults.append(error)
        if suspect is not None:
            self.admitted = [entry for entry in self.admitted if entry.row.handle != suspect.handle]
        recover(state, self.grants, [entry.row.slot for entry in self.admitted], suspect)
        if suspect is not None:
            end_suspect(state, suspect, f"it could not be admitted: {type(error).__name__}: {error}")

    def _scan(self) -> None:
        state, grants, waiting = self.state, self.grants, self.state.waiting
        state.rest_reason = ReasonCode.QUEUE_POSITION
        if not len(waiting):
            return
        if state.policy.dynamic:
            waiting.rerank(state.policy.ranks(list(waiting), state))
        if grants.short:
            state.rest_reason = ReasonCode.KV_SHORT
            return
        place = num_passed = 0
        while place < len(waiting) and num_passed < state.config.max_num_seqs:
            request = self._suspect = waiting[place]
            # Rows are displaced from the tail on, so the last one is the first in policy order: none behind it enters.
            if state.preempted and request.order_key > state.preempted[-1].order_key:
                break
            if grants.held and not self._carries_no_prefill(request):
                state.rest_reason = ReasonCode.PREFILL_CADENCE
                break
            verdict = self._consider(request)
            if verdict is _Verdict.STOP:
                break
            if verdict is _Verdict.PASSED:
                place += 1
                num_passed += 1
                continue
            waiting.pop(place)
            if verdict is _Verdict.ADMITTED and not self._count_overtaken():
                break

    def _close(self) -> None:
        """Those who were displaced join the queue; host blocks that nobody reads any more go back."""
        self._suspect = None
        for request in self.state.preempted:
            self.state.waiting.add(request)
        self.state.preempted.clear()
        self.state.flush_host_releases()

    @staticmethod
    def _carries_no_prefill(request: Request) -> bool:
        """Whether it only goes on decoding: its KV is on the host, one token is to be computed."""
        return request.status is Status.SWAPPED and request.num_tokens - request.num_swapped_tokens == 1

    # --- looking at one request ------------------------------------------------------------------------

    def _consider(self, request: Request) -> _Verdict:
        state = self.state
        may_displace = len(state.rows) > 0 and state.rows.keys[-1][0] > request.order_key[0]
        # An eviction frees nothing, but the hit it shortens may be in the making: then the request is passed over.
        versions = (state.kv.pool.version, state.kv.pool.stats.evicted, state.watch.version)
        known = self.last_memo.get(request.handle)
        if known is not None and known[0] == versions and not may_displace:
            self.memo[request.handle] = known
            if state.columns.num_free_slots == 0:
                return self._stop(request, WaitReason(ReasonCode.SLOTS_FULL, state.step))
            return self._wait_for_blocks(request, WaitReason(ReasonCode.KV_SHORT, state.step, need=known[1]))
        hold = state.policy.holds(request, state)
        if hold is not None:
            return self._pass(
                request, WaitReason(ReasonCode.POLICY_HOLD, state.step, why=hold.why, until_s=hold.until_s)
            )
        candidate = look_up(state, request, self.grants.capped)
        owner = self._computes_next_block(candidate)
        if owner is not None:
            return self._pass(request, WaitReason(ReasonCode.PREFIX_IN_FLIGHT, state.step, by=owner.request_id))
        if state.cache.num_groups * candidate.gate > state.kv.pool.num_blocks:
            message = f"its {request.num_tokens} tokens do not fit {state.kv.pool.num_blocks} KV blocks"
            state.end_waiting(request, FinishReason.KV_CAPACITY, message)
            return _Verdict.ENDED
        displaced = self._make_room(candidate, may_displace)
        if isinstance(displaced, WaitReason):
            if displaced.code is not ReasonCode.KV_SHORT:
                return self._stop(request, displaced)
            if not may_displace and state.config.reservation in ("nothing", "prompt"):
                self.memo[request.handle] = (versions, displaced.need)
            return self._wait_for_blocks(request, displaced)
        return self._grant(candidate, displaced)

    def _computes_next_block(self, candidate: Candidate) -> Request | None:
        """The row before this request in policy order that is about to publish its next block, if any."""
        state, request = self.state, candidate.request
        limit = (request.num_tokens - 1) // state.cache.block_size
        if not len(state.watch) or not request.takes_hits or candidate.start.num_blocks >= limit:
            return None
        if request.status is Status.SWAPPED:
            return None  # it goes on from where it was, whatever others publish
        for slot in state.watch.slots(request.block_hashes[candidate.start.num_blocks]):
            owner = state.columns.request(slot)
            if self._goes_before(owner, request):
                return owner
        return None

    def _goes_before(self, owner: Request, request: Request) -> bool:
        """Whether a row is before a waiting request; by class alone if ranks are of different times."""
        if self.state.policy.dynamic:
            return owner.order_key[0] <= request.order_key[0]
        return owner.order_key < request.order_key

    def _pass(self, request: Request, reason: WaitReason) -> _Verdict:
        self.state.passed[request.handle] = reason
        return _Verdict.PASSED

    def _stop(self, request: Request, reason: WaitReason) -> _Verdict:
        self.state.passed[request.handle] = reason
        return _Verdict.STOP

    def _wait_for_blocks(self, request: Request, reason: WaitReason) -> _Verdict:
        """It does not fit: the scan ends, unless later requests may overtake it."""
        self.state.passed[request.handle] = replace(reason, free=self.state.kv.pool.num_free)
        if request.num_overtaken >= self.state.config.max_overtakes:
            return _Verdict.STOP
        self.overtaken.append(request)
        return _Verdict.PASSED

    def _count_overtaken(self) -> bool:
        """Count one start before those that wait for blocks; whether they may be overtaken once more."""
        for request in self.overtaken:
            request.num_overtaken += 1
        return all(request.num_overtaken < self.state.config.max_overtakes for request in self.overtaken)

    # --- slots and blocks ------------------------------------------------------------------------------

    def _make_room(self, candidate: Candidate, may_displace: bool) -> list[int] | WaitReason:
        """Rows to displace (none if there is room), tail first, or why it does not fit."""
        state = self.state
        pool = state.kv.pool
        need = blocks_to_start(state, candidate)
        need += sum(pool.num_unheld(blocks) for blocks in candidate.start.device_blocks)
        need += self._watermark(len(state.rows))
        has_slot = state.columns.num_free_slots > 0
        if has_slot and need <= pool.num_free:
            return []
        if may_displace:
            displaced = self._displaceable(candidate)
            if displaced:
                return displaced
            if state.num_plans_inflight:
                self._call_off(self._displaceable(candidate, in_flight_too=True))
        if not has_slot:
            return WaitReason(ReasonCode.SLOTS_FULL, state.step)
        return WaitReason(ReasonCode.KV_SHORT, state.step, need=need, by=reserved_by(state))

    def _watermark(self, num_rows: int) -> int:
        return int(self.state.config.watermark * self.state.kv.pool.num_blocks) if num_rows else 0

    def _displaceable(self, candidate: Candidate, *, in_flight_too: bool = False) -> list[int]:
        """The fewest rows from the tail, all less urgent, that make the request fit; empty if none do."""
        state = self.state
        columns, release = state.columns, ReleaseCount(state)
        avail = state.kv.pool.num_free
        chosen: list[int] = []
        for slot in reversed(state.rows.slots.tolist()):
            if columns.urgency[slot] <= candidate.request.order_key[0]:
                break
            if columns.frames[slot] and not in_flight_too:
                continue
            avail += release.freed_by(slot)
            release.drop(slot)
            chosen.append(slot)
            need = blocks_to_start(state, candidate, without=chosen)
            need += sum(release.num_unheld(blocks) for blocks in candidate.start.device_blocks)
            if need + self._watermark(len(state.rows) - len(chosen)) <= avail:
                return chosen
        return []

    # --- tokens ----------------------------------------------------------------------------------------

    def _grant(self, candidate: Candidate, displaced: list[int]) -> _Verdict:
        """Decide the tokens; admit the request if it gets any."""
        grants, config = self.grants, self.state.config
        taken = self._row_mask(displaced)
        lower = self._giving_way(candidate.request) & ~taken
        tokens = grants.left + int(grants.grant[taken | lower].sum())
        if not config.enable_chunked_prefill and candidate.want > tokens:
            return self._stop(candidate.request, WaitReason(ReasonCode.BUDGET_SPENT, self.state.step))
        grant = min(candidate.want, tokens)
        if candidate.long:
            long = grants.long if grants.long is not None else np.zeros_like(taken)
            long_tokens = grants.long_left + int(grants.grant[(taken | lower) & long].sum())
            grant = min(grant, config.long_prefill_token_threshold, long_tokens)
        if grant == 0 and tokens > 0:
            return self._pass(candidate.request, WaitReason(ReasonCode.LONG_PREFILL_CAP, self.state.step))
        if grant == 0:
            return self._stop(candidate.request, WaitReason(ReasonCode.BUDGET_SPENT, self.state.step))
        self._hold_start(candidate)
        self._displace(candidate.request, displaced, taken)
        self._reclaim(candidate, grant, lower)
        self._admit(candidate, grant)
        return _Verdict.ADMITTED

    def _row_mask(self, slots: list[int]) -> Bool:
        return np.isin(self.grants.slots, slots) if slots else np.zeros(len(self.grants.slots), np.bool_)

    def _giving_way(self, request: Request) -> Bool:
        """Rows whose chunks yield tokens: those of less urgent classes; to a swapped request, equal ones too."""
        grants = self.grants
        if grants.chunk is None:
            return np.zeros(len(grants.slots), np.bool_)
        least = request.order_key[0] + (request.status is not Status.SWAPPED)
        yielding: Bool = grants.chunk & (self.state.columns.urgency[grants.slots] >= least)
        return yielding

    def _displace(self, request: Request, displaced: list[int], taken: Bool) -> None:
        if not displaced:
            return
        self._take_back(taken)
        self.grants.displaced += displaced
        preempt(self.state, displaced, by=request.request_id, cause="displaced")

    def _call_off(self, slots: list[int]) -> None:
        """Leave rows out of this step that can be displaced once their steps in flight have returned.

        Without this, a row that always has a step in flight could never be displaced. Blocks that they took in this
        step go back, since a plan that ends up without rows is dropped with all that it says.
        """
        grants, columns = self.grants, self.state.columns
        self._take_back(self._row_mask(slots))
        columns.reason[slots] = REASON_NUMBER[ReasonCode.IN_FLIGHT]
        if grants.new_blocks is not None:
            takers, index, block_ids = grants.new_blocks
            back = np.isin(takers, slots)
            self.state.kv.pool.free(block_ids[back][::-1].ravel())
            np.subtract.at(columns.held, takers[back], 1)
            grants.new_blocks = takers[~back], index[~back], block_ids[~back]

    def _take_back(self, rows: Bool) -> None:
        grants = self.grants
        grants.left += int(grants.grant[rows].sum())
        if grants.long is not None:
            grants.long_left += int(grants.grant[rows & grants.long].sum())
        grants.grant[rows] = 0

    def _reclaim(self, candidate: Candidate, grant: int, lower: Bool) -> None:
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

    def _hold_start(self, candidate: Candidate) -> None:
        """Reference what it starts from, so that nothing done for it takes that away."""
        state, request = self.state, candidate.request
        for blocks in candidate.start.device_blocks:
            state.kv.pool.adopt(blocks)
        if request.status is Status.SWAPPED:
            state.host_releases.append(request.host_tables)
            request.host_tables = ()
        elif candidate.start.num_restored and state.kv.host is not None:
            for blocks in candidate.start.host_blocks:
                state.kv.host.pool.adopt(blocks)
            state.host_releases.append(candidate.start.host_blocks)

    def _admit(self, candidate: Candidate, grant: int) -> None:
        state, request = self.state, candidate.request
        columns, resumed = state.columns, request.num_preemptions > 0
        state.passed.pop(request.handle, None)
        slot = columns.enter(request, state.config.max_model_len)
        self._fill_table(
            candidate.start, slot, candidate.gate if resumed else state.blocks_for(candidate.start.num_computed + grant)
        )
        columns.published[slot] = candidate.start.num_published
        columns.computed[slot] = candidate.start.num_computed
        state.slot_of[request.handle] = slot
        state.rows.add(request.order_key, slot)
        self._count_start(candidate, resumed)
        state.policy.admitted(request, candidate.start.num_computed, resumed)
        request.move(Status.RUNNING)
        state.watch_row(slot)
        if candidate.want > 1:
            self.grants.carries_prefill = True
        row = _admitted_row(state, slot, candidate.start.num_computed, resumed)
        self.admitted.append(Admission(row, grant, grant == candidate.want))

    def _fill_table(self, start: Start, slot: int, num_blocks: int) -> None:
        """The row's block tables: adopted blocks in their places, new ones everywhere else, copies noted."""
        state, groups = self.state, self.state.cache.num_groups
        blocks = np.zeros((num_blocks, groups), np.int32)
        for group, adopted in enumerate(start.device_blocks):
            blocks[: len(adopted), group] = adopted
        if start.num_restored:
            empty = blocks == 0
            blocks[empty] = state.kv.pool.take(int(np.count_nonzero(empty)))
            sources = np.stack(start.host_blocks, axis=1)
            copied = sources != 0
            state.swap_in.append(np.stack([sources[copied], blocks[: len(sources)][copied]], axis=1))
        else:
            missing = num_blocks - start.num_blocks
            blocks[start.num_blocks :] = state.kv.pool.take(missing * groups).reshape(missing, groups)
        for group, table in enumerate(state.columns.tables):
            table[slot, :num_blocks] = blocks[:, group]
        state.columns.held[slot] = num_blocks

    def _count_start(self, candidate: Candidate, resumed: bool) -> None:
        """Statistics and the event of an admission that really happens."""
        state, request = self.state, candidate.request
        num_cached = candidate.start.num_computed - candidate.start.num_restored
        if state.cache.enable_prefix_caching and request.takes_hits and request.status is not Status.SWAPPED:
            state.kv.count_hit(request.num_tokens, num_cached, candidate.start.num_restored, first=not resumed)
        num_recomputed = 0
        if not resumed:
            request.num_cached_tokens = candidate.start.num_computed
        elif request.status is Status.PREEMPTED:
            num_recomputed = max(0, request.num_lost_tokens - candidate.start.num_computed)
            # more than it had published may be there by now, from others, but that was not lost by preempting it
            num_found = min(num_cached, request.num_published_at_preemption)
            state.cost.observe_resume(request.num_published_at_preemption, num_found)
        state.events.append(
            Admitted(
                request.handle,
                request.request_id,
                state.step,
                state.now,
                state.slot_of[request.handle],
                num_cached,
                resumed,
                num_restored_tokens=candidate.start.num_restored,
                num_recomputed_tokens=num_recomputed,
            )
        )


def _admitted_row(state: SchedulerState, slot: int, num_computed: int, resumed: bool) -> AdmittedRow:
    columns, request = state.columns, state.columns.request(slot)
    return AdmittedRow(
        slot=slot,
        handle=request.handle,
        request_id=request.request_id,
        tokens=request.tokens,
        num_prompt_tokens=request.num_prompt_tokens,
        num_computed_tokens=num_computed,
        block_ids=tuple(ids.copy() for ids in columns.block_ids(slot)),
        sampling=request.sampling,
        resumed=resumed,
        ending_token_ids=request.ending_token_ids,
    )
