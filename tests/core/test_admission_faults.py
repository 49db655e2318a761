"""An exception at any line of admission ends one request at most; all else goes on as if nothing had happened."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headway.core.events import Admitted, Event, Finished, Preempted, Queued
from headway.core.plan import StepPlan
from headway.core.request import Request
from headway.sim.fake import FakeExecutor
from tests.core.builders import make_prompt, make_request, make_scheduler
from tests.support.line_faults import LineFault, LineTracer

FOLDERS = ("headway/core/", "headway/kv/")
WITHIN = ("_scan", "_close")


class World:
    """A scheduler and an executor that checks every block it reads, at some moment of a run."""

    def __init__(self, *, depth: int = 1, **options: Any) -> None:
        self.scheduler = make_scheduler(**options)
        self.executor = FakeExecutor(block_size=4)
        self.depth = depth
        self.plans: deque[StepPlan] = deque()
        self.events: list[Event] = []
        self.outputs: dict[str, list[int]] = {}
        self._names: dict[int, str] = {}
        self.now = 0.0

    def add(self, *requests: Request) -> World:
        for request in requests:
            self.scheduler.add(request, self.now)
            self._names[request.handle] = request.request_id
            self.outputs[request.request_id] = []
        return self

    def launch(self, schedule: Callable[[Callable[[], StepPlan]], StepPlan] = lambda call: call()) -> StepPlan:
        plan = schedule(lambda: self.scheduler.schedule(self.now))
        if plan.num_rows:
            self.executor.submit(plan)
            self.plans.append(plan)
        return plan

    def land(self) -> None:
        plan = self.plans.popleft()
        output = self.scheduler.update(plan, self.executor.collect(), self.now)
        for row, handle in enumerate(output.handles.tolist()):
            self.outputs[self._names[handle]] += output.tokens[row, : output.counts[row]].tolist()

    def step(self, times: int = 1) -> World:
        for _ in range(times):
            self.now += 1.0
            plan = self.launch()
            if len(self.plans) >= self.depth or (self.plans and not plan.num_rows):
                self.land()
        return self

    def drain(self) -> World:
        for _ in range(300):
            if not self.scheduler.has_unfinished and not self.plans:
                break
            self.step()
        assert not self.scheduler.has_unfinished, self.scheduler.wait_reasons()
        self.events += self.scheduler.take_events()
        return self

    @property
    def ends(self) -> dict[str, Finished]:
        return {event.request_id: event for event in self.events if isinstance(event, Finished)}


def shared(name: str, length: int, common: int = 8, **options: Any) -> Request:
    """A request whose first tokens are those of others."""
    return make_request(name, [*make_prompt("common", common), *make_prompt(name, length - common)], **options)


def plain() -> World:
    return (
        World(max_num_batched_tokens=12).add(make_request("a", 9)).step().add(make_request("b", 9), make_request("c"))
    )


def prefix_hit() -> World:
    world = World().add(shared("a", 12)).step(2)
    return world.add(shared("b", 14), shared("c", 15), shared("d", 9))


def prefix_in_the_making() -> World:
    world = World(max_num_batched_tokens=6).add(make_request("x", 3, max_tokens=9)).step(2)
    return world.add(shared("a", 12), shared("b", 14), make_request("c", 5))


def displacement(**options: Any) -> World:
    world = World(num_blocks=12, scheduling_policy="priority", **options)
    world.add(*(make_request(f"low{place}", 12, max_tokens=8, priority=5 - place) for place in range(3))).step(3)
    return world.add(
        make_request("high", 24, max_tokens=5), make_request("next", 5, priority=1), make_request("last", 4)
    )


def displacement_of_swapped() -> World:
    return displacement(num_host_blocks=40, preemption_mode="swap")


def displacement_of_two_groups() -> World:
    world = World(num_blocks=24, num_groups=2, scheduling_policy="priority")
    world.add(*(make_request(f"low{place}", 12, max_tokens=8, priority=5) for place in range(3))).step(3)
    return world.add(make_request("high", 24, max_tokens=5), make_request("last", 4))


def calling_off() -> World:
    world = World(num_blocks=12, scheduling_policy="priority", depth=2, max_num_batched_tokens=16)
    world.add(*(make_request(f"low{place}", 11, max_tokens=9, priority=5) for place in range(3))).step(4)
    return world.add(make_request("high", 24, max_tokens=5), make_request("last", 4))


def taking_tokens_back() -> World:
    world = World(scheduling_policy="priority", max_num_batched_tokens=12, long_prefill_token_threshold=8)
    world.add(make_request("low", 40, priority=5), make_request("low2", 30, priority=5)).step()
    return world.add(make_request("high", 12), make_request("next", 9, priority=1), make_request("last", 4))


def coming_back_from_the_host() -> World:
    world = World(num_blocks=12, num_host_blocks=40, preemption_mode="swap", scheduling_policy="priority")
    world.add(*(make_request(f"low{place}", 12, max_tokens=8, priority=5) for place in range(3))).step(3)
    world.add(make_request("high", 24, max_tokens=3)).step()
    while not world.scheduler.num_swapped or world.scheduler.kv.pool.num_free < 6:
        world.step()
    return world.add(make_request("last", 4))


def prefix_on_the_host() -> World:
    world = World(
        num_blocks=10, num_host_blocks=40, preemption_mode="swap", scheduling_policy="priority", max_num_seqs=2
    )
    world.add(shared("low", 13, max_tokens=8, priority=5)).step(2)
    world.add(make_request("high", 37, max_tokens=3)).step(2)
    world.scheduler.abort("low", world.now)
    world.step(2)
    return world.add(shared("hit", 14), make_request("last", 4))


def fair_tenants() -> World:
    world = World(scheduling_policy="fair", max_num_batched_tokens=10)
    world.add(*(make_request(f"a{place}", 9, tenant="a") for place in range(3))).step(2)
    return world.add(make_request("b", 9, tenant="b"), make_request("c", 5, tenant="c"))


def reserving_everything() -> World:
    world = World(reservation="all", num_blocks=14, max_overtakes=2)
    world.add(make_request("a", 9, max_tokens=20)).step(2)
    return world.add(make_request("b", 20, max_tokens=16), make_request("c", 4), make_request("d", 4))


def predicting() -> World:
    world = World(reservation="predicted", num_blocks=14)
    world.add(make_request("a", 9, max_tokens=20)).step(2)
    return world.add(make_request("b", 20, max_tokens=16), make_request("c", 4))


SCENES: Sequence[Callable[[], World]] = (
    plain,
    prefix_hit,
    prefix_in_the_making,
    displacement,
    displacement_of_swapped,
    displacement_of_two_groups,
    calling_off,
    taking_tokens_back,
    coming_back_from_the_host,
    prefix_on_the_host,
    fair_tenants,
    reserving_everything,
    predicting,
)


@pytest.fixture(scope="module")
def places() -> dict[str, list[int]]:
    """Where to raise, by scene: at every line in the first scene that gets there, and at every 13th in the others.

    All of them take two minutes.
    """
    chosen: dict[str, list[int]] = {}
    seen: set[tuple[str, int]] = set()
    for number, scene in enumerate(SCENES):
        tracer = LineTracer(FOLDERS, WITHIN)
        scene().launch(tracer.run)
        lines = tracer.lines
        chosen[scene.__name__] = []
        for nth, place in enumerate(tracer.places()):
            if lines[place] not in seen or nth % 13 == number:
                chosen[scene.__name__].append(place)
                seen.add(lines[place])
    assert len(seen) > 600
    return chosen


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_fault_at_any_line_ends_one_request_at_most(scene: Callable[[], World], places: dict[str, list[int]]) -> None:
    start = scene()
    expected = copy.deepcopy(start).drain()
    num_ended = 0
    for place in places[scene.__name__]:
        world = copy.deepcopy(start)
        tracer = LineTracer(FOLDERS, WITHIN, place)
        world.launch(tracer.run)
        where = tracer.lines[-1]
        assert tracer.raised
        world.scheduler.check_invariants()
        [fault] = world.scheduler.take_faults()
        assert isinstance(fault, LineFault), where
        _check_reasons(world, where)
        if len(world.plans) >= world.depth:
            world.land()
        world.scheduler.check_invariants()
        world.add(make_request("good", 10, max_tokens=2)).drain()
        num_ended += _check_ends(world, expected, where)
        world.scheduler.check_invariants()
        assert world.scheduler.kv.pool.num_free == world.scheduler.kv.pool.num_blocks, where
        assert world.scheduler.num_running == world.scheduler.num_waiting == 0
    assert num_ended


def _check_reasons(world: World, where: Any) -> None:
    """Whoever lives is served, or has a reason."""
    scheduler = world.scheduler
    served = {world._names[handle] for plan in world.plans for handle in _handles(world, plan)}
    live = scheduler.num_running + scheduler.num_waiting
    assert len(scheduler.wait_reasons().keys() | served) >= live, where


def _handles(world: World, plan: StepPlan) -> list[int]:
    return [int(world.executor._handles[slot]) for slot in plan.slots]


def _check_ends(world: World, expected: World, where: Any) -> int:
    """All but one at most end as they would have; nobody has a wrong token. How many ended with an error."""
    errors = [name for name, end in world.ends.items() if end.reason.value == "error"]
    assert len(errors) <= 1, where
    for name in errors:
        assert "LineFault" in world.ends[name].message
    for name, output in expected.outputs.items():
        if name not in errors:
            assert world.outputs[name] == output, (where, name)
            assert world.ends[name].reason == expected.ends[name].reason, (where, name)
    assert len(world.outputs["good"]) == 2
    _check_life(world)
    return len(errors)


def _check_life(world: World) -> None:
    """Events tell lives that can be: queued, admitted, perhaps preempted and admitted again, finished once."""
    phase: dict[int, str] = {}
    follows = {
        Queued: {
            "",
        },
        Admitted: {"queued", "out"},
        Preempted: {"in"},
        Finished: {"queued", "in", "out"},
    }
    after = {Queued: "queued", Admitted: "in", Preempted: "out", Finished: "end"}
    for event in world.events:
        assert phase.get(event.handle, "") in follows[type(event)], event
        phase[event.handle] = after[type(event)]
    assert set(phase.values()) == {"end"}


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair", "longest_prefix"])
def test_a_fault_at_any_line_of_adding_keeps_nothing(policy: str) -> None:
    start = World(scheduling_policy=policy).add(make_request("a", 9, tenant="x")).step()
    start.add(make_request("b", 9, tenant="y"), make_request("c", 9))
    request = make_request("bad", 9, tenant="z", cache_salt="s")
    tracer = LineTracer(FOLDERS, ("add",))
    world = copy.deepcopy(start)
    tracer.run(lambda: world.scheduler.add(copy.deepcopy(request), 1.0))

    for place in tracer.places():
        world, bad = copy.deepcopy(start), copy.deepcopy(request)
        faulty = LineTracer(FOLDERS, ("add",), place)
        try:
            faulty.run(lambda world=world, bad=bad: world.scheduler.add(bad, 1.0))  # type: ignore[misc]
        except LineFault:
            world.scheduler.check_invariants()
            assert world.scheduler.num_waiting == 2
            world.add(bad)  # nothing is left in it that would keep it from being added again
        world.drain()
        assert {name: len(output) for name, output in world.outputs.items()} == dict.fromkeys(world.outputs, 4)


def test_a_policy_that_raises_costs_the_request_it_was_asked_about() -> None:
    world = World().add(make_request("a", 9), make_request("b", 9), make_request("c", 9))
    policy = world.scheduler._state.policy

    def holds(request: Request, view: object) -> None:
        if request.request_id == "b":
            raise KeyError("b")

    policy.holds = holds  # type: ignore[method-assign]
    world.drain()

    assert {name: end.reason.value for name, end in world.ends.items()} == {"a": "length", "b": "error", "c": "length"}
    assert world.ends["b"].message == "it could not be admitted: KeyError: 'b'"


def test_a_request_that_cannot_enter_its_slot_costs_no_slot() -> None:
    """As many as there are slots used to leave none."""
    world = World(max_num_seqs=2)
    for place in range(5):
        bad = make_request(f"bad{place}", 6)
        world.add(bad)
        object.__setattr__(bad.sampling, "stop_token_ids", [5])  # past all checks, as before there were any
    world.add(make_request("good", 6)).drain()

    assert [name for name, end in world.ends.items() if end.reason.value == "error"] == [f"bad{n}" for n in range(5)]
    assert len(world.outputs["good"]) == 4
