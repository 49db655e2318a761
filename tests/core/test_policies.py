"""Policies: who goes first, and how long somebody can be overtaken (docs/design/memory.md, 'Policies')."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import ConfigError
from headway.core import Hold, Policy, Request, register_policy
from headway.core.policies import POLICIES
from headway.core.policies.base import PolicyView
from headway.core.scheduler import Scheduler
from tests.core.builders import PrefixModel, Run, drive, make_prompt, make_request, make_scheduler
from tests.core.properties import MAY_BE_PASSED_OVER, StepChecker
from tests.core.scene import Scene
from tests.core.workloads import VOCABULARY, Workload, examples, workloads

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_policy.py"


def order_of_starts(run: Run) -> list[str]:
    """Who started, in which order, for the first time."""
    return [event.request_id for event in run.admissions if not event.resumed]


# --- bounds on being overtaken ---


def check_bounds(run: Run, requests: dict[str, Request], policy: str, ageing_s: float) -> None:
    """Nobody starts before one that waits and came so much earlier that the policy's bound protects it."""
    for event in run.admissions:
        late = requests[event.request_id]
        for name, reason in run.reasons[event.step - 1].items():
            early = requests[name]
            if early.handle > late.handle or event.resumed or reason.code in MAY_BE_PASSED_OVER:
                continue
            if reason.code.value in ("preempted", "in_flight") or event.step in run.scheduled.get(name, ()):
                continue
            gap = late.arrival_s - early.arrival_s
            if policy == "priority":
                allowed = gap < ageing_s * (early.priority - late.priority)
            elif policy == "shortest":
                allowed = gap < ageing_s
            else:
                allowed = event.step - early.arrival_s < ageing_s
            assert allowed, f"{early} waits since {early.arrival_s}, {late} came {gap} later and starts: {reason}"


@pytest.mark.parametrize("policy", ["priority", "shortest", "longest_prefix"])
def test_ageing_bounds_how_long_somebody_is_overtaken(policy: str) -> None:
    @examples(0.04)
    @given(workload=workloads(disturbed=False), ageing_s=st.sampled_from((1.0, 2.0, 4.0)))
    def bounded(workload: Workload, ageing_s: float) -> None:
        config = dataclasses.replace(
            workload.config,
            scheduling_policy=policy,
            ageing_s=ageing_s,
            max_num_seqs=min(2, workload.config.max_num_seqs),
        )
        arrivals = workload.arrivals()
        run = drive(
            Scheduler(config, workload.cache),
            arrivals,
            model=PrefixModel(VOCABULARY),
            watcher=StepChecker(config, workload.cache),
        )
        requests = {request.request_id: request for group in arrivals.values() for request in group}
        check_bounds(run, requests, policy, ageing_s)

    bounded()


@pytest.mark.parametrize(("ageing_s", "started_before"), [(5.0, 4), (0.0, 30)])
def test_long_prompt_is_overtaken_by_short_ones_for_a_while_only(ageing_s: float, started_before: int) -> None:
    """Shortest first: one slot, a short prompt every step. Without ageing the long one waits for all of them, with it
    for those that come in the same five seconds."""
    scene = Scene(max_num_seqs=1, scheduling_policy="shortest", ageing_s=ageing_s, max_num_batched_tokens=64)
    arrivals = {step: [make_request(f"s{step}", 4, max_tokens=1)] for step in range(1, 31)}
    arrivals[1].append(make_request("long", 40, max_tokens=1))
    assert order_of_starts(scene.run(arrivals)).index("long") == started_before


@pytest.mark.parametrize(("ageing_s", "started_before"), [(10.0, 20), (0.0, 30)])
def test_unimportant_request_grows_more_urgent_by_waiting(ageing_s: float, started_before: int) -> None:
    """Priority: two steps less urgent, so overtaken by those that come within twenty seconds."""
    scene = Scene(max_num_seqs=1, scheduling_policy="priority", ageing_s=ageing_s)
    arrivals = {step: [make_request(f"u{step}", 4, max_tokens=1)] for step in range(10, 40)}
    arrivals[10].insert(0, make_request("low", 4, max_tokens=1, priority=2))
    assert order_of_starts(scene.run(arrivals)).index("low") == started_before


@pytest.mark.parametrize(("ageing_s", "started_before"), [(5.0, 5), (0.0, 30)])
def test_uncached_prompt_is_overtaken_by_cached_ones_for_a_while_only(ageing_s: float, started_before: int) -> None:
    """Longest prefix first: everybody but one shares a cached beginning."""
    scene = Scene(max_num_seqs=1, scheduling_policy="longest_prefix", ageing_s=ageing_s)
    shared = make_prompt("shared", 16)
    scene.run([make_request("before", [*shared, 0], max_tokens=1)])
    arrivals = {step: [make_request(f"c{step}", [*shared, step], max_tokens=1)] for step in range(1, 31)}
    arrivals[1].append(make_request("other", 17, max_tokens=1))
    assert order_of_starts(scene.run(arrivals)).index("other") == started_before


# --- orders ---


def test_longest_cached_prefix_goes_first() -> None:
    """What is cached decides, not the order of arrival; ties go by that."""
    scene = Scene(max_num_seqs=1, scheduling_policy="longest_prefix")
    shared = make_prompt("shared", 24)
    scene.run([make_request("before", shared, max_tokens=1)])
    hits = {"none": 0, "one": 4, "five": 20, "three": 12, "five-too": 20}
    requests = [make_request(name, shared[:hit] + make_prompt(name, 6), max_tokens=1) for name, hit in hits.items()]
    run = scene.run(requests)
    assert order_of_starts(run) == ["five", "five-too", "three", "one", "none"]
    assert [event.num_cached_tokens for event in run.admissions] == [20, 20, 12, 4, 0]


def test_prefix_that_nobody_has_computed_is_computed_once_under_a_dynamic_policy() -> None:
    """Longest prefix first: once blocks of the first one are published, the others rank before it, and still wait."""
    scene = Scene(scheduling_policy="longest_prefix", max_num_batched_tokens=12)
    shared = make_prompt("shared", 40)
    run = scene.run([make_request(name, [*shared, number], max_tokens=2) for number, name in enumerate("abc")])
    assert [event.num_cached_tokens for event in run.admissions] == [0, 40, 40]
    assert {run.reason(step, "b") for step in range(1, 4)} == {"prefix_in_flight"}
    assert run.num_computed_tokens == 41 + 1 + 1 + 3


@pytest.mark.parametrize(("policy", "late"), [("deadline", []), ("fcfs", ["c"])])
def test_earliest_deadline_goes_first_so_all_are_met_that_can_be(policy: str, late: list[str]) -> None:
    """Three requests of four steps each, one at a time, the most pressing one last in the queue."""
    scene = Scene(max_num_seqs=1, scheduling_policy=policy)
    deadlines = {"a": 12.0, "b": 8.0, "c": 4.0}
    run = scene.run([make_request(name, 4, deadline_s=deadline) for name, deadline in deadlines.items()])
    assert [name for name, deadline in deadlines.items() if run.token_steps[name][-1] > deadline] == late


def test_deadline_is_asked_before_the_class_and_those_without_come_last() -> None:
    scene = Scene(max_num_seqs=1, scheduling_policy="deadline")
    wishes: dict[str, dict[str, object]] = {
        "never": {},
        "batch": {"slo": "batch"},
        "soon": {"slo": "batch", "deadline_s": 3.0},
        "interactive": {"slo": "interactive"},
        "standard": {"slo": "standard"},
    }
    run = scene.run([make_request(name, 4, max_tokens=1, **wish) for name, wish in wishes.items()])  # type: ignore[arg-type]
    assert order_of_starts(run) == ["interactive", "soon", "standard", "batch", "never"]


def test_deadlines_preempt_nobody_but_order_who_gives_way() -> None:
    """One class: a more pressing request waits for a slot, but its growth takes the blocks of a less pressing one."""
    scene = Scene(max_num_seqs=2, num_blocks=6, scheduling_policy="deadline")
    arrivals = {
        1: [make_request("later", 8, max_tokens=16, deadline_s=100.0)],
        2: [make_request("sooner", 8, max_tokens=16, deadline_s=5.0)],
    }
    run = scene.run(arrivals)
    assert [(event.request_id, event.by, event.cause) for event in run.preemptions] == [("later", "sooner", "blocks")]


# --- policies of one's own ---


def test_example_of_a_policy_of_ones_own_works() -> None:
    """examples/custom_policy.py: whoever pays goes first and displaces those who do not; the cheapest gives way."""
    assert len(EXAMPLE.read_text().splitlines()) <= 22
    assert POLICIES["paying_first"].__name__ == "PayingFirst"
    scene = Scene(max_num_seqs=2, scheduling_policy="paying_first")
    arrivals = {
        1: [make_request("free1", 4, max_tokens=20, tenant="x"), make_request("free2", 4, max_tokens=20, tenant="y")],
        3: [make_request("free3", 4, tenant="x"), make_request("paid", 4, tenant="paid-z")],
    }
    run = scene.run(arrivals)
    assert [(event.request_id, event.by) for event in run.preemptions] == [("free2", "paid")]
    assert order_of_starts(run) == ["free1", "free2", "paid", "free3"]


def test_policy_that_ranks_victims_chooses_who_gives_way() -> None:
    """The example prefers what is cheap to compute again: b, not c, though c is the last."""
    outcomes = {}
    for policy in ("fcfs", "paying_first"):
        scene = Scene(max_num_seqs=3, num_blocks=9, scheduling_policy=policy, enable_prefix_caching=False)
        run = scene.run([make_request(name, size, max_tokens=12) for name, size in (("a", 8), ("b", 4), ("c", 16))])
        outcomes[policy] = run.preemptions[0].request_id
    assert outcomes == {"fcfs": "c", "paying_first": "b"}


class OneBreath(Policy):
    """Lets every request wait for three seconds."""

    def order_key(self, request: Request) -> tuple[int, float, int]:
        return (0, 0.0, request.handle)

    def holds(self, request: Request, view: PolicyView) -> Hold | None:
        until_s = request.arrival_s + 3
        return Hold("take a breath", until_s) if view.now < until_s else None


def test_request_that_the_policy_holds_is_passed_over_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "one_breath", OneBreath)
    scene = Scene(scheduling_policy="one_breath")
    run = scene.run({4: [make_request("a", 4)], 5: [make_request("b", 4)]}, max_idle=4)
    reason = run.reasons[3]["a"]
    assert (reason.why, reason.until_s, reason.by) == ("take a breath", 7.0, "")
    assert [run.reason(step, "a") for step in range(4, 8)] == ["policy_hold"] * 3 + [""]
    assert (run.admitted_at("a"), run.admitted_at("b")) == ([7], [8])


def test_policies_are_known_by_name_and_refuse_what_they_have_no_use_for() -> None:
    with pytest.raises(ConfigError, match="must be one of fcfs, priority"):
        make_scheduler(scheduling_policy="lottery")
    with pytest.raises(ConfigError, match="no effect with policy fair"):
        make_scheduler(scheduling_policy="fair", ageing_s=3.0)
    with pytest.raises(ValueError, match="called 'fcfs' already"):
        register_policy("fcfs", OneBreath)
    register_policy("fcfs", POLICIES["fcfs"])
