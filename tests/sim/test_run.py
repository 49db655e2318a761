"""Simulations: times add up, everything that arrives ends, pressure shows in the report."""

from __future__ import annotations

from math import inf
from typing import Any, ClassVar

import numpy as np
import pytest

from headway.config import CacheConfig, SchedulerConfig
from headway.core import Hold, Policy, Request
from headway.core.policies import POLICIES
from headway.core.policies.base import PolicyView
from headway.core.rest import POLL_S
from headway.core.scheduler import Scheduler
from headway.sim.run import SimReport, SimulationStalled, percentile, simulate
from headway.sim.timed import LatencyModel
from headway.sim.workload import Arrival, Uniform, make_workload, poisson_arrivals

LATENCY = LatencyModel(step_s=1.0, token_s=0.0)


def one(arrival_s: float, prompt: int, outputs: int, content: int = 7) -> Arrival:
    return Arrival(arrival_s, ((content, prompt),), outputs)


def run(work: list[Arrival], latency: LatencyModel = LATENCY, *, depth: int = 1, **options: Any) -> SimReport:
    cache_names = ("num_blocks", "num_host_blocks", "enable_prefix_caching")
    cache = {"num_blocks": 200, **{name: options.pop(name) for name in cache_names if name in options}}
    config = SchedulerConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 512, **options})
    return simulate(work, config, CacheConfig(block_size=4, **cache), latency, depth=depth)


def test_times_are_those_of_the_steps() -> None:
    report = run([one(0.5, 10, 4), one(2.6, 9, 1, content=8)])

    # steps end at 1.5, 2.5, 3.5, 4.5; the second request comes within the third and runs in the fourth
    assert report.admitted_s.tolist() == [0.5, 3.5]
    assert report.ttft_s.tolist() == [pytest.approx(1.0), pytest.approx(1.9)]
    assert report.tpot_s[0] == pytest.approx(1.0)
    assert np.isnan(report.tpot_s[1])
    assert report.e2e_s.tolist() == [pytest.approx(4.0), pytest.approx(1.9)]
    assert (report.makespan_s, report.busy_s, report.num_steps) == (4.5, 4.0, 4)
    assert report.throughput_tok_s == pytest.approx(5 / 4.5)
    assert report.finished == {"length": 2}
    assert report.computed_tokens == 10 + 3 + 9


def test_the_clock_jumps_over_idle_time() -> None:
    report = run([one(1000.0, 4, 2)])

    assert (report.makespan_s, report.num_steps) == (1002.0, 2)


def test_arrivals_may_be_given_in_any_order() -> None:
    work = [one(5.0, 4, 2), one(0.0, 5, 2, content=9)]

    assert run(work).arrival_s.tolist() == [0.0, 5.0]


def test_what_can_never_run_is_refused_and_the_rest_goes_on() -> None:
    report = run([one(0.0, 600, 2), one(0.0, 4, 2)])

    assert report.finished == {"refused": 1, "length": 1}
    assert np.isnan(report.first_s[0]) and report.num_output_tokens.tolist() == [0, 2]


def test_shared_prompts_are_computed_once() -> None:
    report = run([one(float(9 * number), 40, 1) for number in range(5)])

    assert report.cached_tokens == 4 * 36
    assert report.computed_tokens == 40 + 4 * 4


def crowd() -> list[Arrival]:
    return make_workload(poisson_arrivals(2.0, 60, seed=1), Uniform(20, 60), Uniform(10, 40), seed=2)


@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
@pytest.mark.parametrize("depth", [1, 3])
def test_pressure_shows(mode: str, depth: int) -> None:
    latency = LatencyModel(step_s=0.01, token_s=0.001, copy_s=0.0001, block_copy_s=0.0001)
    host = {} if mode == "recompute" else {"num_host_blocks": 400}
    report = run(crowd(), latency, depth=depth, num_blocks=40, preemption_mode=mode, **host)

    assert report.finished == {"length": 60}
    assert not np.isnan(report.end_s).any()
    kinds = {kind for kind, count in report.preemptions.items() if count}
    assert kinds == ({"recompute"} if mode == "recompute" else {"swap"})
    assert (report.recomputed_tokens > 0) == (mode == "recompute")
    assert (report.restored_tokens > 0) == (report.swapped_in_blocks > 0) == (mode != "recompute")
    wide = run(crowd(), latency, depth=depth, num_blocks=2000)
    assert sum(wide.preemptions.values()) == 0
    assert wide.num_output_tokens.tolist() == report.num_output_tokens.tolist()
    assert wide.makespan_s <= report.makespan_s
    assert report.peak_blocks == 40 < wide.peak_blocks


def test_two_simulations_are_the_same() -> None:
    first, second = (run(crowd(), num_blocks=40) for _ in range(2))

    assert np.array_equal(first.last_s, second.last_s)
    assert (first.num_steps, first.preemptions) == (second.num_steps, second.preemptions)


def test_prefill_cadence_does_not_stop_the_clock() -> None:
    report = run(crowd(), prefill_schedule_interval=4)

    assert report.finished == {"length": 60}


class Curfew(Policy):
    """Holds every request for three seconds, and says so or not."""

    says: ClassVar[bool] = True
    hold_s: ClassVar[float] = 3.0

    def order_key(self, request: Request) -> tuple[int, float, int]:
        return (0, 0.0, request.handle)

    def holds(self, request: Request, view: PolicyView) -> Hold | None:
        until_s = request.arrival_s + self.hold_s
        return Hold("curfew", until_s if self.says else None) if view.now < until_s else None


class QuietCurfew(Curfew):
    says = False


class Night(QuietCurfew):
    hold_s = inf


def test_time_in_which_the_policy_holds_everybody_passes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "curfew", Curfew)
    real, times = Scheduler.schedule, []
    monkeypatch.setattr(Scheduler, "schedule", lambda self, now: times.append(now) or real(self, now))

    report = run([one(1000.0, 4, 2), one(1001.0, 5, 1, content=8), one(5000.0, 4, 1)], scheduling_policy="curfew")

    assert report.admitted_s.tolist() == [1003.0, 1004.0, 5003.0]
    assert report.finished == {"length": 3}
    assert sorted(set(times)) == [1000.0, 1001.0, 1003.0, 1004.0, 5000.0, 5003.0]


def test_a_hold_that_does_not_say_how_long_it_lasts_is_looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "curfew", QuietCurfew)

    report = run([one(1.0, 4, 2), one(50.0, 4, 1)], scheduling_policy="curfew")

    assert report.admitted_s.tolist() == [pytest.approx(4.0, abs=POLL_S), pytest.approx(53.0, abs=POLL_S)]


def test_a_hold_that_never_ends_is_reported_and_does_not_stop_what_is_to_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(POLICIES, "curfew", Night)
    monkeypatch.setattr("headway.sim.run.MAX_POLLS", 100)

    with pytest.raises(SimulationStalled, match=r"r0.*curfew.*r1.*curfew"):
        run([one(1.0, 4, 2), one(5000.0, 4, 1)], scheduling_policy="curfew")


def test_a_stalled_scheduler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Scheduler.schedule

    def never(self: Scheduler, now: float) -> Any:
        plan = real(self, now)
        return plan if plan.num_rows == 0 else real(Scheduler(self.config, self.cache), now)

    monkeypatch.setattr(Scheduler, "schedule", never)

    with pytest.raises(SimulationStalled, match="no request moves"):
        run([one(0.0, 4, 2)])


def test_percentiles_leave_out_what_did_not_happen() -> None:
    assert percentile(np.array([1.0, np.nan, 3.0]), 50) == 2.0
    assert np.isnan(percentile(np.array([np.nan]), 50))
