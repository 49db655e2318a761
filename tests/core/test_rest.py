"""Rest or standstill: the one rule by which engine and simulation tell a hold of the policy from a stuck scheduler."""

from __future__ import annotations

from math import inf, nan

import pytest

from headway.core import Hold, Policy, Request, Scheduler
from headway.core.policies import POLICIES
from headway.core.policies.base import PolicyView
from headway.core.rest import MAX_IDLE_STEPS, POLL_S, RestRule
from tests.core.builders import make_request, make_scheduler


class Curfew(Policy):
    """Holds every request until the second that its priority names; 0 means that it does not say when."""

    def order_key(self, request: Request) -> tuple[int, float, int]:
        return (0, 0.0, request.handle)

    def holds(self, request: Request, view: PolicyView) -> Hold | None:
        if not request.priority:
            return Hold("who knows")
        return Hold("not yet", float(request.priority)) if view.now < request.priority else None


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    monkeypatch.setitem(POLICIES, "curfew", Curfew)
    return make_scheduler(scheduling_policy="curfew")


def test_the_first_hold_to_end_is_known(scheduler: Scheduler) -> None:
    seen = []
    for name, until in (("a", 90), ("b", 30), ("c", 60), ("d", 0)):
        scheduler.schedule(1.0)
        seen.append(scheduler.held_until_s)
        scheduler.add(make_request(name, 4, priority=until), 1.0)
    scheduler.schedule(2.0)

    assert [*seen, scheduler.held_until_s] == [None, 90.0, 30.0, 30.0, -inf]


def test_a_hold_lasts_until_its_end_and_is_then_no_longer_there(scheduler: Scheduler) -> None:
    rule = RestRule(scheduler)
    scheduler.add(make_request("a", 4, priority=30), 1.0)

    assert not scheduler.schedule(1.0).num_rows
    assert rule.observe(1.5, moved=False) == 30.0
    assert scheduler.schedule(30.0).num_rows == 1
    assert rule.observe(31.0, moved=True) == 31.0


def test_a_hold_without_an_end_is_looked_at_now_and_then(scheduler: Scheduler) -> None:
    forever, bounded = RestRule(scheduler), RestRule(scheduler, max_polls=3)
    scheduler.add(make_request("a", 4), 1.0)
    scheduler.schedule(1.0)

    assert {forever.observe(5.0, moved=False) for _ in range(1000)} == {5.0 + POLL_S}
    assert [bounded.observe(5.0, moved=False) for _ in range(4)] == [5.0 + POLL_S] * 3 + [inf]
    assert bounded.observe(5.0, moved=True) == 5.0
    assert bounded.observe(5.0, moved=False) == 5.0 + POLL_S


def test_a_hold_whose_end_has_passed_is_not_looked_at_without_a_pause(scheduler: Scheduler) -> None:
    scheduler.add(make_request("a", 4, priority=30), 1.0)
    scheduler.schedule(29.0)

    assert RestRule(scheduler).observe(30.0, moved=False) == 30.0 + POLL_S


def test_steps_that_change_nothing_while_nobody_is_held_are_a_standstill() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", 4), 1.0)
    rule = RestRule(scheduler)

    waits = [rule.observe(2.0, moved=moved) for moved in [False] * 5 + [True] + [False] * MAX_IDLE_STEPS]

    assert waits == [2.0] * (len(waits) - 1) + [inf]


def test_nothing_to_do_is_no_standstill() -> None:
    rule = RestRule(make_scheduler())

    assert {rule.observe(2.0, moved=False) for _ in range(100)} == {2.0}


@pytest.mark.parametrize("until_s", [inf, -inf, nan])
def test_a_hold_ends_at_a_time_or_it_is_not_known_when(until_s: float) -> None:
    with pytest.raises(ValueError, match="not known when"):
        Hold("a whim", until_s)


def test_a_policy_that_holds_looks_at_the_clock() -> None:
    """So a trace of it has the times by which it can be made again."""
    assert Curfew().uses_clock
    assert not POLICIES["fcfs"]().uses_clock
