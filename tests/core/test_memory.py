"""Memory pressure over random workloads: tiny pools, both tiers, all options of docs/design/memory.md.

With one step at a time the oracle knows every plan (test_oracle.py). Here several steps are in flight, and what must
hold is checked after each: P1..P10, conservation on both tiers, every block and every copy with the content that its
reader expects (the fake executor looks too), nothing computed again for a swapped request, and the same tokens as
without any pressure. ``HEADWAY_EXAMPLES=10000`` makes 10,000 such traces.
"""

from __future__ import annotations

import dataclasses
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from headway.config import CacheConfig, SchedulerConfig
from headway.core.plan import StepPlan, StepResult
from headway.core.scheduler import Scheduler
from headway.sim.fake import FakeExecutor
from tests.core.builders import PrefixModel, Run, drive
from tests.core.properties import StepChecker
from tests.core.workloads import VOCABULARY, Workload, pressed_examples, workloads


class TimedFake(FakeExecutor):
    """The checking executor, with times, so that costs are predicted: for ``cheapest`` and ``auto``."""

    def __init__(self, workload: Workload, block_copy_s: float) -> None:
        super().__init__(
            block_size=workload.cache.block_size,
            vocab_size=VOCABULARY,
            fail=lambda plan: workload.failures.get(plan.step, {}),
        )
        self.block_copy_s = block_copy_s
        self.times: deque[tuple[float, float]] = deque()

    def submit(self, plan: StepPlan) -> None:
        super().submit(plan)
        num_copies = len(plan.swap_out) + len(plan.swap_in)
        copy_s = 0.001 + self.block_copy_s * num_copies if num_copies else 0.0
        self.times.append((0.002 + 0.001 * plan.num_tokens, copy_s))

    def collect(self) -> StepResult:
        forward_s, copy_s = self.times.popleft()
        return dataclasses.replace(super().collect(), forward_s=forward_s, copy_s=copy_s)


def run_checked(workload: Workload, depth: int, model: PrefixModel | FakeExecutor) -> Run:
    """Drive a scheduler with ``depth`` steps in flight, under all checks; afterwards both tiers are free."""
    scheduler = Scheduler(workload.config, workload.cache)
    run = drive(
        scheduler,
        workload.arrivals(),
        aborts=workload.aborts,
        late_aborts=workload.late_aborts,
        depth=depth,
        model=model,
        watcher=StepChecker(workload.config, workload.cache),
    )
    assert scheduler.kv.pool.num_free == workload.cache.num_blocks
    host = scheduler.kv.host
    assert host is None or host.pool.num_free == workload.cache.num_host_blocks
    scheduler.check_invariants()
    return run


def without_pressure(workload: Workload) -> Run:
    """The same requests where there is room for all."""
    config = dataclasses.replace(workload.config, preemption_mode="recompute", scheduling_policy="fcfs", ageing_s=None)
    cache = CacheConfig(block_size=workload.cache.block_size, num_blocks=2000, enable_prefix_caching=False)
    run = drive(Scheduler(config, cache), workload.arrivals(), model=PrefixModel(VOCABULARY))
    assert not run.preemptions
    return run


def same_tokens(pressed: Run, roomy: Run, config: SchedulerConfig) -> None:
    """Everybody gets the same tokens; who outgrew the pool, as many as fitted."""
    for name, tokens in pressed.outputs.items():
        if pressed.finished[name] == "kv_capacity":
            assert tokens == roomy.outputs[name][: len(tokens)], f"{name} under {config}"
        else:
            assert (pressed.finished[name], tokens) == (roomy.finished[name], roomy.outputs[name]), f"{name}, {config}"


@pressed_examples(0.15)
@given(workload=workloads(disturbed=False, pressed=True), depth=st.sampled_from((1, 2, 3)))
def test_tokens_equal_those_of_a_run_without_pressure(workload: Workload, depth: int) -> None:
    pressed = run_checked(workload, depth, PrefixModel(VOCABULARY))
    same_tokens(pressed, without_pressure(workload), workload.config)


@pressed_examples(0.3)
@given(
    workload=workloads(pressed=True), depth=st.sampled_from((1, 2, 3)), block_copy_s=st.sampled_from((0.0, 1e-4, 1e-2))
)
def test_nothing_leaks_stalls_or_reads_foreign_blocks_with_both_tiers(
    workload: Workload, depth: int, block_copy_s: float
) -> None:
    run_checked(workload, depth, TimedFake(workload, block_copy_s))
