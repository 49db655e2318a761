"""Faults at every point of a step, on every tier: who finishes has the tokens of a run without faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.config import CacheConfig, SamplingParams, SchedulerConfig
from headway.core.events import Finished, Preempted
from headway.core.plan import StepPlan, StepResult
from headway.core.request import FinishReason, Request
from headway.core.scheduler import Scheduler
from headway.engine.loop import EngineLoop
from headway.executor import buffers, executor, host_kv, masks, parameters, sampler
from headway.models.ops.attention import TorchAttention
from headway.sim.fake import FakeExecutor, PlanViolation
from tests.executor.builders import BLOCK, VOCAB, ToyModel, make_executor

NUM_REQUESTS = 16
TIERS = {
    "recompute": {"preemption_mode": "recompute"},
    "swap": {"preemption_mode": "swap", "num_host_blocks": 30},
    "swap, small": {"preemption_mode": "swap", "num_host_blocks": 7},
    "swap, uncached": {"preemption_mode": "swap", "num_host_blocks": 30, "enable_prefix_caching": False},
}


class Run:
    """A crowded engine: 8 slots, 20 blocks of 4 tokens, prompts that share beginnings.

    Attributes:
        tokens: by request.
        reasons: how each request ended.
        swaps: preemptions by swap.
    """

    def __init__(
        self, make: Callable[[CacheConfig], Any], *, depth: int = 1, num_blocks: int = 20, **tier: Any
    ) -> None:
        options = {name: tier.pop(name) for name in ("num_host_blocks", "enable_prefix_caching") if name in tier}
        cache = CacheConfig(block_size=BLOCK, num_blocks=num_blocks, **options)
        config = SchedulerConfig(max_num_seqs=8, max_model_len=64, max_num_batched_tokens=12, **tier)
        self.scheduler = Scheduler(config, cache)
        self.loop = EngineLoop(self.scheduler, make(cache), lambda: 0.0, depth=depth)
        self.tokens: dict[str, list[int]] = {}
        self.reasons: dict[str, FinishReason] = {}
        self.swaps = 0
        self._names: dict[int, str] = {}

    def add(self, index: int) -> None:
        prompt = [1 + (5 * (index % 5) + 3 * place) % (VOCAB - 1) for place in range(6 + 5 * (index % 4))]
        request = Request(f"r{index}", prompt, SamplingParams(max_tokens=14, ignore_eos=True, temperature=0.0))
        self.loop.add(request)
        self._names[request.handle] = request.request_id
        self.tokens[request.request_id] = []

    def drain(self) -> Run:
        for _ in range(3000):
            if not self.loop.has_work:
                break
            report = self.loop.step()
            self.scheduler.check_invariants()
            for event in report.events:
                self.swaps += isinstance(event, Preempted) and event.kind == "swap"
                if isinstance(event, Finished):
                    self.reasons[event.request_id] = event.reason
            output = report.output
            for row, handle in enumerate(output.handles.tolist() if output is not None else ()):
                assert output is not None
                self.tokens[self._names[handle]] += output.tokens[row, : output.counts[row]].tolist()
        assert not self.loop.has_work, "it never ended"
        pools = [self.scheduler.kv.pool, *([self.scheduler.kv.host.pool] if self.scheduler.kv.host else [])]
        assert all(pool.num_free == pool.num_blocks for pool in pools)
        return self


class Fault(RuntimeError):
    """What the tests raise."""


def raise_every(period: int, call: Callable[..., Any]) -> Callable[..., Any]:
    """``call``, but that every ``period``-th time it raises instead."""
    count = 0

    def wrapped(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count % period == 0:
            raise MemoryError("a fault")
        return call(*args, **options)

    return wrapped


POINTS: dict[str, tuple[Any, str]] = {
    "submitting": (executor.ModelExecutor, "submit"),
    "copying out": (host_kv.HostKV, "swap_out"),
    "between copies": (host_kv, "_runs"),
    "copying back": (host_kv.HostKV, "swap_in"),
    "entering a row": (buffers.InputBuffers, "admit"),
    "entering its parameters": (parameters.SlotParameters, "admit"),
    "entering its form": (masks.FormKeeper, "admit"),
    "building inputs": (buffers.InputBuffers, "build"),
    "the forward pass": (TorchAttention, "write_kv_and_attend"),
    "the head": (ToyModel, "logits"),
    "sampling": (sampler.Sampler, "sample"),
    "writing samples": (buffers.InputBuffers, "write_sampled"),
    "bringing the result": (executor.ModelExecutor, "_to_host"),
    "collecting": (executor.ModelExecutor, "collect"),
}


def toy(cache: CacheConfig) -> Any:
    return make_executor(ToyModel(), cache=cache, max_num_batched_tokens=12)


@pytest.fixture(scope="module")
def alone() -> dict[str, list[int]]:
    """What each request says when it has the engine for itself."""
    run = Run(toy, num_blocks=60)
    for index in range(NUM_REQUESTS):
        run.add(index)
        run.drain()
    return run.tokens


@pytest.mark.parametrize(("tier", "depth"), [*((tier, 1) for tier in TIERS), ("swap", 2)])
@pytest.mark.parametrize("point", POINTS)
def test_a_fault_ends_requests_with_an_error_or_changes_nothing(
    point: str, tier: str, depth: int, alone: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(toy, depth=depth, **TIERS[tier])
    for index in range(NUM_REQUESTS):
        run.add(index)
    place, name = POINTS[point]
    with monkeypatch.context() as patch:
        patch.setattr(place, name, raise_every(9, getattr(place, name)))
        run.drain()

    finished = [name for name, reason in run.reasons.items() if reason is FinishReason.LENGTH]
    assert {name: run.tokens[name] for name in finished} == {name: alone[name] for name in finished}
    assert set(run.reasons.values()) <= {FinishReason.LENGTH, FinishReason.ERROR}
    for index in range(NUM_REQUESTS):  # the engine is whole: all of it again, without faults
        run.add(index)
    assert run.drain().tokens == alone
    assert bool(run.swaps) == tier.startswith("swap")


class LossyExecutor(FakeExecutor):
    """Loses what the test says: whole plans, or copies to the host; a read of what was never copied is noted down."""

    def __init__(self, loses: Callable[[StepPlan], str], **options: Any) -> None:
        super().__init__(block_size=BLOCK, vocab_size=VOCAB, **options)
        self._loses = loses
        self.violations: list[str] = []
        self.num_lost_copies = 0

    def submit(self, plan: StepPlan) -> None:
        what = self._loses(plan)
        out = plan.swap_out
        if what:
            self.num_lost_copies += len(out)
            object.__setattr__(plan, "swap_out", out[:0])  # the copies are never made
        try:
            if what == "plan":
                self._follow(plan)
            else:
                super().submit(plan)
        except PlanViolation as violation:
            self.violations.append(str(violation))
            raise
        finally:
            object.__setattr__(plan, "swap_out", out)
        if what == "plan":
            raise Fault("the plan is lost")
        if what == "copies":
            result = self._results[-1]
            self._results[-1] = StepResult(
                result.step, result.tokens, result.counts, failed=result.failed, lost_host_blocks=out[:, 1]
            )


@settings(max_examples=60, deadline=None)
@given(
    losses=st.lists(st.sampled_from(["", "", "", "plan", "copies"]), min_size=1, max_size=40),
    tier=st.sampled_from(sorted(TIERS)),
    depth=st.integers(1, 3),
)
def test_nobody_starts_from_what_was_never_copied(losses: list[str], tier: str, depth: int) -> None:
    expected = Run(lambda cache: FakeExecutor(block_size=BLOCK, vocab_size=VOCAB), num_blocks=60)
    steps = iter(losses * 3)
    # A lost copy that a plan in flight already builds on is the executor's to notice, and this one does not.
    may_lose = {"", "plan", "copies"} if depth == 1 else {"", "plan"}
    lossy = LossyExecutor(lambda plan: what if (what := next(steps, "")) in may_lose else "")
    run = Run(lambda cache: lossy, depth=depth, **TIERS[tier])
    for index in range(NUM_REQUESTS):
        run.add(index)
        expected.add(index)
    run.drain()
    expected.drain()

    assert not lossy.violations
    finished = [name for name, reason in run.reasons.items() if reason is FinishReason.LENGTH]
    assert {name: run.tokens[name] for name in finished} == {name: expected.tokens[name] for name in finished}


def test_lost_copies_are_computed_again_by_whoever_shares_them() -> None:
    lossy = LossyExecutor(lambda plan: "copies" if len(plan.swap_out) else "")
    run = Run(lambda cache: lossy, **TIERS["swap"])
    for index in range(NUM_REQUESTS):
        run.add(index)
    run.drain()

    assert lossy.num_lost_copies and not lossy.violations
    assert set(run.reasons.values()) == {FinishReason.LENGTH}
    assert run.scheduler.kv.host is not None and not run.scheduler.kv.host.pool.num_entries


def test_blocks_that_only_a_lost_plan_told_of_end_their_row() -> None:
    """A chunk that yields its tokens to a more urgent request keeps the blocks it was given for them."""
    told: list[StepPlan] = []

    def loses(plan: StepPlan) -> str:
        given = {int(slot) for new in plan.new_blocks for slot in new.slots}
        idle = given - set(plan.slots.tolist())
        told.extend([plan] if idle else [])
        return "plan" if idle else ""

    lossy = LossyExecutor(loses)
    run = Run(lambda cache: lossy, num_blocks=60, scheduling_policy="priority")
    long = Request("long", np.arange(40) % VOCAB, SamplingParams(max_tokens=4, ignore_eos=True), priority=5)
    run.loop.add(long)
    run._names[long.handle], run.tokens["long"] = "long", []
    run.loop.step()
    for index in range(3):
        urgent = Request(f"u{index}", [7] * 12, SamplingParams(max_tokens=4, ignore_eos=True), priority=0)
        run.loop.add(urgent)
        run._names[urgent.handle], run.tokens[f"u{index}"] = f"u{index}", []
    run.drain()

    assert told, "the case did not come up"
    assert not lossy.violations
    assert run.reasons["long"] is FinishReason.ERROR
