"""The columnar scheduler against the sequential one: equal plans, block ids, reasons and endings, step after step."""

from __future__ import annotations

from hypothesis import given

from tests.core.lockstep import run_in_lockstep
from tests.core.workloads import Workload, examples, workloads


@examples(0.3)
@given(workload=workloads())
def test_scheduler_and_oracle_make_the_same_plans(workload: Workload) -> None:
    run_in_lockstep(workload)


@examples(0.3)
@given(workload=workloads(disturbed=False, policy="priority"))
def test_scheduler_and_oracle_displace_the_same_rows(workload: Workload) -> None:
    run_in_lockstep(workload)
