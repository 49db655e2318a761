"""Properties over random workloads with several steps in flight: docs/design/step.md, 'What must hold'.

With one step at a time the oracle says what each plan must be (test_oracle.py, which checks the same properties). Here
nobody knows the plan, only what must hold: P1..P10 after every step, every block holding what its reader expects (the
fake executor looks), and the same tokens for everybody however many steps are in flight.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.events import Finished
from headway.core.plan import StepPlan
from headway.core.scheduler import Scheduler
from headway.sim.fake import FakeExecutor
from tests.core.builders import PrefixModel, Run, drive, make_request, make_scheduler
from tests.core.properties import StepChecker
from tests.core.workloads import VOCABULARY, Workload, examples, workloads


def run_checked(workload: Workload, depth: int, model: PrefixModel | FakeExecutor) -> Run:
    """Drive a scheduler with ``depth`` steps in flight, under all checks."""
    return drive(
        Scheduler(workload.config, workload.cache),
        workload.arrivals(),
        aborts=workload.aborts,
        late_aborts=workload.late_aborts,
        depth=depth,
        model=model,
        watcher=StepChecker(workload.config, workload.cache),
    )


@examples(0.12)
@given(workload=workloads(disturbed=False), depth=st.sampled_from((2, 3)))
def test_requests_get_the_same_tokens_with_any_number_of_steps_in_flight(workload: Workload, depth: int) -> None:
    alone = run_checked(workload, 1, PrefixModel(VOCABULARY))
    many = run_checked(workload, depth, PrefixModel(VOCABULARY))
    assert alone.outputs == many.outputs
    assert alone.finished == many.finished


@examples(0.25)
@given(workload=workloads(), depth=st.sampled_from((1, 2, 3)))
def test_no_row_reads_foreign_blocks_with_aborts_and_failures_in_flight(workload: Workload, depth: int) -> None:
    fake = FakeExecutor(
        block_size=workload.cache.block_size,
        vocab_size=VOCABULARY,
        fail=lambda plan: workload.failures.get(plan.step, {}),
    )
    run_checked(workload, depth, fake)


def plan_digest(plans: list[StepPlan]) -> str:
    """A fingerprint of plans, to the byte."""
    digest = hashlib.sha256()
    for plan in plans:
        arrays = [plan.slots, plan.num_scheduled, plan.starts, plan.samples, plan.released]
        arrays += [array for new in plan.new_blocks for array in (new.slots, new.index, new.block_ids)]
        for row in plan.admitted:
            digest.update(f"{row.slot} {row.request_id} {row.num_computed_tokens} {row.resumed}".encode())
            arrays += [row.tokens, *row.block_ids]
        for array in arrays:
            digest.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def crowded_run(depth: int) -> Run:
    """A fixed run with shared prefixes, displacement, preemption for blocks and stop tokens."""
    scheduler = make_scheduler(
        max_num_batched_tokens=12, num_blocks=16, scheduling_policy="priority", long_prefill_token_threshold=6
    )
    shared = list(range(100, 110))
    requests = [
        make_request(f"r{number}", shared[: 3 * (number % 4)] + [number] * 5, max_tokens=20, priority=3 - number // 3)
        for number in range(12)
    ]
    return drive(scheduler, {1 + number // 2: [request] for number, request in enumerate(requests)}, depth=depth)


@pytest.mark.parametrize("depth", [1, 3])
def test_equal_calls_make_equal_plans_under_any_hash_seed(depth: int) -> None:
    """P8; cases C82 and the replayability of the core."""
    here = crowded_run(depth)
    assert here.preemptions and any(row.resumed for plan in here.plans for row in plan.admitted)
    assert plan_digest(crowded_run(depth).plans) == plan_digest(here.plans)
    code = f"from tests.core.test_properties import *; print(plan_digest(crowded_run({depth}).plans))"
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert printed.stdout.strip() == plan_digest(here.plans), printed.stderr


def test_computed_tokens_are_needed_ones_and_those_lost_to_preemption() -> None:
    """P10's accounting, without a prefix cache to give anything back."""
    scheduler = make_scheduler(num_blocks=12, enable_prefix_caching=False, max_num_seqs=4)
    run = drive(scheduler, [make_request(f"r{number}", 8, max_tokens=20) for number in range(6)])
    assert run.preemptions
    assert set(run.finished.values()) == {"length"}
    ends = [event for event in run.events if isinstance(event, Finished)]
    needed = sum(event.num_prompt_tokens + event.num_output_tokens - 1 for event in ends)
    assert run.num_computed_tokens == needed + sum(event.num_lost_tokens for event in run.preemptions)
