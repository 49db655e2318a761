"""The scheduler: decides, step by step, which tokens of which requests run, on which blocks, and who waits.

Protocol: ``add`` and ``abort`` at any time between the others; ``schedule`` makes a plan; every plan with rows goes
to the executor and its result to ``update``, in the order of the plans; several plans may be in flight. A plan
without rows is dropped. No clock is read: ``now`` is an argument and only copied into events.

The rules are in docs/design/step.md; each phase is one module: ``tokens``, ``blocks``, ``admission``, ``results``.
"""

from __future__ import annotations

from collections import deque
from math import inf

import numpy as np

from headway.config import CacheConfig, ConfigError, SchedulerConfig
from headway.core.admission import Admission, Memo, Scan
from headway.core.blocks import fit_blocks
from headway.core.events import Event, Queued, StepOutput
from headway.core.inspection import Inspection, StepReasons, inspect, step_reasons
from headway.core.invariants import check_state
from headway.core.plan import Bool, Int32, NewBlocks, StepPlan, StepResult
from headway.core.reasons import ReasonCode, WaitReason
from headway.core.request import FinishReason, PromptTooLong, Request, RequestRefused, Status
from headway.core.results import apply_result
from headway.core.state import SchedulerState
from headway.core.tokens import REASON_OF_NUMBER, Grants, grant_tokens
from headway.kv.coordinator import KVCoordinator
from headway.kv.hashing import KeyPart, chain_root


class Scheduler:
    """Columnar scheduler over one KV pool.

    Args:
        config: limits and policy of the step.
        cache: size and shape of the KV memory.
    """

    def __init__(self, config: SchedulerConfig, cache: CacheConfig) -> None:
        _refuse_idle_options(config, cache)
        self.config = config
        self.cache = cache
        self._state = SchedulerState.create(config, cache)
        self._num_requests = 0
        self._memo: Memo = {}
        self._inflight: deque[int] = deque()
        self._last_slots: Int32 = np.zeros(0, np.int32)

    # --- requests come and go --------------------------------------------------------------------------

    def add(self, request: Request, now: float) -> None:
        """Enter a request into the waiting queue and give it its handle.

        Raises:
            RequestRefused: it can never be served, or its id is taken; nothing is kept of it.
        """
        self.check(request)
        try:
            self._enter(request, now)
            self._num_requests = request.handle
        except BaseException:
            self.take_back(request)
            raise

    def _enter(self, request: Request, now: float) -> None:
        state = self._state
        request.handle = self._num_requests + 1
        request.arrival_s = now
        state.policy.queued(request, state.waiting)
        request.order_key = state.policy.order_key(request)
        if self.cache.enable_prefix_caching and request.takes_hits:
            parts = (KeyPart("salt", request.cache_salt.encode()),) if request.cache_salt else ()
            request.hash_root = chain_root(parts, block_size=self.cache.block_size)
            state.extend_hashes(request, request.tokens)
        state.live[request.handle] = request
        state.names[request.request_id] = request.handle
        state.waiting.add(request)
        state.events.append(Queued(request.handle, request.request_id, state.step, now, request.num_prompt_tokens))

    def take_back(self, request: Request) -> None:
        """Keep nothing of the request that was added last, and nothing in it, as if it had not been."""
        state, handle = self._state, request.handle
        state.live.pop(handle, None)
        if state.names.get(request.request_id) == handle:
            del state.names[request.request_id]
        state.waiting.rebuild(other for other in state.waiting if other is not request)
        state.events = [event for event in state.events if event.handle != handle]
        request.handle, request.hash_root, request.block_hashes = -1, b"", []

    def check(self, request: Request) -> None:
        """Raise what :meth:`add` would raise for this request; nothing is kept of it."""
        prompt, longest = request.num_prompt_tokens, self.config.max_model_len - 1
        if request.request_id in self._state.names:
            raise RequestRefused(
                "request_id", request.request_id, None, f"a request named {request.request_id!r} is unfinished"
            )
        if request.status is not Status.WAITING or request.handle != -1:
            raise RequestRefused("request_id", request.request_id, None, "a request can be added only once")
        if prompt == 0:
            raise RequestRefused("prompt", 0, None, "the prompt has no tokens")
        if prompt > longest:
            raise PromptTooLong.for_model(prompt, self.config.max_model_len)
        largest = self.largest_prompt
        if prompt > largest:
            raise PromptTooLong(
                prompt,
                largest,
                f"the prompt has {prompt} tokens; the KV memory holds prompts of at most {largest} tokens"
                f" ({self.cache.num_blocks} blocks of {self.cache.block_size} in {self.cache.num_groups} group(s))",
            )

    @property
    def largest_prompt(self) -> int:
        """Tokens of the largest prompt that fits the pool together with one output token."""
        return self.cache.num_blocks // self.cache.num_groups * self.cache.block_size - 1

    def abort(self, handle: int, now: float) -> bool:
        """End a live request, wherever it is; handles of others are ignored, names never looked at.

        Returns:
            Whether it was live. Nothing of it is delivered any more; blocks that a step in flight touches go back
            when that step has returned.
        """
        state = self._state
        request = state.live.get(handle)
        if request is None:
            return False
        state.now = now
        slot = state.slot_of.get(request.handle)
        if slot is None:
            state.waiting.remove(request)
            state.end_waiting(request, FinishReason.ABORT)
            state.flush_host_releases()
        else:
            state.end_rows([slot], [FinishReason.ABORT], [""])
        return True

    # --- the step --------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan:
        """Decide the next step. A plan without rows is not to be executed."""
        state = self._state
        state.step += 1
        state.now = now
        state.passed.clear()
        state.columns.reason[state.rows.slots] = 0
        grants = grant_tokens(state)
        fit_blocks(state, grants)
        scan = Scan(state, grants, self._memo)
        scan.run()
        self._memo = scan.memo
        return self._commit(grants, scan.admitted)

    def _commit(self, grants: Grants, admitted: list[Admission]) -> StepPlan:
        """Advance the counters and turn the grants into the plan."""
        state, columns = self._state, self._state.columns
        slots, num_scheduled, starts = grants.slots, grants.grant, grants.computed
        samples: Bool = starts + num_scheduled == grants.target
        served = num_scheduled > 0
        if not served.all():
            slots, num_scheduled, starts, samples = (
                slots[served],
                num_scheduled[served],
                starts[served],
                samples[served],
            )
        carries_prefill = grants.carries_prefill or (grants.chunk is not None and bool((grants.chunk & served).any()))
        if admitted:
            slots = np.append(slots, np.array([entry.row.slot for entry in admitted], np.int32))
            num_scheduled = np.append(num_scheduled, np.array([entry.grant for entry in admitted], np.int32))
            starts = np.append(starts, np.array([entry.row.num_computed_tokens for entry in admitted], np.int32))
            samples = np.append(samples, np.array([entry.samples for entry in admitted], np.bool_))
        columns.computed[slots] = starts + num_scheduled
        columns.inflight[slots] += num_scheduled
        columns.frames[slots] += 1
        columns.placeholders[slots] += samples
        plan = StepPlan(
            step=state.step,
            slots=slots,
            num_scheduled=num_scheduled,
            starts=starts,
            samples=samples,
            new_blocks=self._new_blocks(grants),
            admitted=tuple(entry.row for entry in admitted),
            released=np.array(state.released if len(slots) else [], np.int32),
            swap_out=_joined(state.swap_out if len(slots) else []),
            swap_in=_joined(state.swap_in),
        )
        self._last_slots = slots
        if len(slots):
            state.released.clear()
            state.swap_out.clear()
            state.swap_in.clear()
            self._inflight.append(plan.step)
            state.num_plans_inflight += 1
            since = state.steps_since_prefill
            state.steps_since_prefill = 0 if carries_prefill else None if since is None else since + 1
        elif grants.held:
            state.steps_since_prefill = None  # the decodes it was held for cannot run: prefill must not wait for them
        return plan

    def _new_blocks(self, grants: Grants) -> tuple[NewBlocks, ...]:
        """Blocks that running rows took, without those of rows displaced afterwards."""
        groups = range(self.cache.num_groups)
        if grants.new_blocks is None:
            none = np.zeros(0, np.int32)
            return tuple(NewBlocks(none, none, none) for _ in groups)
        slots, index, block_ids = grants.new_blocks
        if grants.displaced:
            stays = ~np.isin(slots, grants.displaced)
            slots, index, block_ids = slots[stays], index[stays], block_ids[stays]
        return tuple(NewBlocks(slots, index, np.ascontiguousarray(block_ids[:, group])) for group in groups)

    def update(self, plan: StepPlan, result: StepResult, now: float) -> StepOutput:
        """Take in the result of the oldest plan in flight.

        Raises:
            ValueError: plan and result do not belong together or come out of order.
        """
        state = self._state
        if plan.step != result.step or not self._inflight or self._inflight[0] != plan.step:
            expected = self._inflight[0] if self._inflight else None
            raise ValueError(f"result of step {result.step} for plan {plan.step}; the next in order is {expected}")
        if len(result.counts) != plan.num_rows or len(result.tokens) != plan.num_rows:
            raise ValueError(f"result has {len(result.counts)} rows, plan {plan.step} has {plan.num_rows}")
        self._inflight.popleft()
        state.num_plans_inflight -= 1
        state.now = now
        state.cost.observe_step(plan, result)
        return apply_result(state, plan, result)

    # --- looking in ------------------------------------------------------------------------------------

    def take_faults(self) -> list[Exception]:
        """Exceptions since the last call that broke an admission off and ended the request it was about."""
        faults, self._state.faults = self._state.faults, []
        return faults

    def take_events(self) -> list[Event]:
        """Lifecycle events since the last call, in order."""
        events, self._state.events = self._state.events, []
        return events

    @property
    def has_unfinished(self) -> bool:
        """Whether a request is live or a slot is draining."""
        return bool(self._state.live) or self._state.columns.num_draining > 0

    @property
    def num_running(self) -> int:
        """Requests in a slot."""
        return len(self._state.rows)

    @property
    def num_waiting(self) -> int:
        """Live requests without a slot, swapped ones included."""
        return len(self._state.waiting)

    @property
    def num_swapped(self) -> int:
        """Waiting requests whose KV is on the host."""
        return self._state.waiting.num_swapped

    @property
    def step(self) -> int:
        """Number of the last step."""
        return self._state.step

    @property
    def kv(self) -> KVCoordinator:
        """The KV memory: pool, groups, statistics."""
        return self._state.kv

    @property
    def seconds_per_token(self) -> float:
        """Seconds that one more token of a step takes, as measured lately; 0 before anything was measured."""
        return self._state.cost.forward.slope

    @property
    def held_until_s(self) -> float | None:
        """When the first hold of the policy in the last step ends, on the clock of ``schedule``; ``-inf`` if it does
        not say of one of them, ``None`` if it held nobody."""
        holds = (reason for reason in self._state.passed.values() if reason.code is ReasonCode.POLICY_HOLD)
        return min((-inf if reason.until_s is None else reason.until_s for reason in holds), default=None)

    def wait_reason(self, request_id: str) -> WaitReason | None:
        """Why a live request was not served in the last step; ``None`` if it was, or is not live."""
        state = self._state
        handle = state.names.get(request_id)
        if handle is None:
            return None
        request = state.live[handle]
        slot = state.slot_of.get(request.handle)
        if slot is not None:
            number = int(state.columns.reason[slot])
            return WaitReason(REASON_OF_NUMBER[number], state.step) if number else None
        own = state.passed.get(request.handle)
        if own is not None:
            return own
        return WaitReason(state.rest_reason, state.step, need=state.waiting.position(request))

    def wait_reasons(self) -> dict[str, WaitReason]:
        """Reasons of all live requests not served in the last step, by request id."""
        reasons = {request_id: self.wait_reason(request_id) for request_id in self._state.names}
        return {request_id: reason for request_id, reason in reasons.items() if reason is not None}

    def step_reasons(self) -> StepReasons:
        """The reasons of the last step as they are kept, at no cost; they change with the next call of anything."""
        return step_reasons(self._state)

    def inspect(self) -> Inspection:
        """A copy of everything there is to see. Costs time in proportion to live requests and blocks."""
        return inspect(self._state)

    def check_invariants(self) -> None:
        """Raise ``InvariantViolation`` if any counter, queue, table or block is inconsistent."""
        check_state(self._state)


def _refuse_idle_options(config: SchedulerConfig, cache: CacheConfig) -> None:
    """Options that would have no effect together are refused, not ignored."""
    if config.preemption_mode == "swap" and not cache.num_host_blocks:
        raise ConfigError("preemption_mode", "swap", "needs num_host_blocks above 0")
    if config.preemption_mode == "recompute" and cache.num_host_blocks:
        raise ConfigError("num_host_blocks", cache.num_host_blocks, "has no effect with preemption_mode=recompute")


def _joined(copies: list[Int32]) -> Int32:
    """All copies as int32[k, 2]; of several to one target, which only dropped plans can leave, the last counts."""
    if not copies:
        return np.zeros((0, 2), np.int32)
    joined = np.concatenate(copies)
    _, last = np.unique(joined[::-1, 1], return_index=True)
    if len(last) < len(joined):
        joined = joined[np.sort(len(joined) - 1 - last)]
    return joined
