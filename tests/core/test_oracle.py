"""The columnar scheduler against the sequential one: equal plans, block ids, reasons and endings, step after step."""

from __future__ import annotations

from hypothesis import given

from tests.core.lockstep import run_in_lockstep
from tests.core.workloads import Workload, examples, pressed_examples, workloads


@examples(0.3)
@given(workload=workloads())
def test_scheduler_and_oracle_make_the_same_plans(workload: Workload) -> None:
    run_in_lockstep(workload)


@examples(0.3)
@given(workload=workloads(disturbed=False, policy="priority"))
def test_scheduler_and_oracle_displace_the_same_rows(workload: Workload) -> None:
    run_in_lockstep(workload)


@pressed_examples(0.45)
@given(workload=workloads(pressed=True))
def test_both_make_the_same_plans_under_memory_pressure(workload: Workload) -> None:
    """All modes of preemption, victims, reservations, policies; ``auto`` is told to the oracle."""
    run_in_lockstep(workload)


@pressed_examples(0.1)
@given(workload=workloads(disturbed=False, policy="priority", pressed=True))
def test_both_displace_and_swap_the_same_rows(workload: Workload) -> None:
    run_in_lockstep(workload)
