"""Fair share: the proven bound on what tenants that wait may differ in service, whatever they send.

docs/design/memory.md, 'The bound of fair', after lemma 4.3 and theorem 4.4 of Sheng et al., "Fairness in Serving Large
Language Models" (OSDI 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import CacheConfig, SchedulerConfig
from headway.core.events import Admitted, Event, StepOutput
from headway.core.plan import StepPlan, StepResult
from headway.core.policies import FairShare
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from tests.core.builders import Run, drive, make_request
from tests.core.properties import StepChecker
from tests.core.workloads import Dice, dice, examples

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0


@dataclass
class Moment:
    """After a step: what each tenant was served so far, weighted, and which of them wait."""

    step: int
    service: dict[str, float]
    waiting: list[str]


class ServiceChecker(StepChecker):
    """Counts service from outside: prompts that start, tokens that are delivered."""

    def __init__(self, config: SchedulerConfig, cache: CacheConfig) -> None:
        super().__init__(config, cache)
        self.service: dict[str, float] = {}
        self.moments: list[Moment] = []
        self.tenant_of: dict[int, str] = {}

    def added(self, request: Request) -> None:
        super().added(request)
        self.tenant_of[request.handle] = request.tenant
        self.service.setdefault(request.tenant, 0.0)

    def scheduled(self, scheduler: Scheduler, plan: StepPlan, events: Sequence[Event]) -> None:
        super().scheduled(scheduler, plan, events)
        for event in events:
            if isinstance(event, Admitted) and not event.resumed:
                book = self.live[event.request_id]
                self.service[book.request.tenant] += PROMPT_WEIGHT * book.request.num_prompt_tokens

    def updated(
        self, scheduler: Scheduler, plan: StepPlan, result: StepResult, output: StepOutput, events: Sequence[Event]
    ) -> None:
        super().updated(scheduler, plan, result, output, events)
        for handle in output.handles.tolist():
            self.service[self.tenant_of[handle]] += OUTPUT_WEIGHT
        waiting = sorted({book.request.tenant for book in self.live.values() if book.slot is None})
        self.moments.append(Moment(plan.step, dict(self.service), waiting))


@dataclass
class Crowd:
    """Requests of several tenants, none of which share a prefix."""

    config: SchedulerConfig
    cache: CacheConfig
    arrivals: dict[int, list[Request]] = field(default_factory=dict)
    longest: int = 0

    def send(self, step: int, tenant: str, prompt: int, outputs: int) -> None:
        number = sum(map(len, self.arrivals.values()))
        name = f"{tenant}{number}"
        self.arrivals.setdefault(step, []).append(make_request(name, prompt, max_tokens=outputs, tenant=tenant))
        self.longest = max(self.longest, prompt + outputs)

    @property
    def bound(self) -> float:
        return OUTPUT_WEIGHT * self.config.max_num_seqs * self.longest

    def run(self) -> tuple[Run, ServiceChecker]:
        checker = ServiceChecker(self.config, self.cache)
        return drive(Scheduler(self.config, self.cache), self.arrivals, watcher=checker), checker


def make_crowd(slots: int, num_blocks: int, num_host_blocks: int = 0) -> Crowd:
    mode = "swap" if num_host_blocks else "recompute"
    config = SchedulerConfig(
        max_num_seqs=slots,
        max_num_batched_tokens=24,
        max_model_len=64,
        scheduling_policy="fair",
        preemption_mode=mode,
    )
    return Crowd(config, CacheConfig(block_size=4, num_blocks=num_blocks, num_host_blocks=num_host_blocks))


def worst_difference(moments: Sequence[Moment], tenants: Sequence[str]) -> float:
    """Most that the service of two tenants differs over any span in which both wait all the time."""
    worst = 0.0
    for first in tenants:
        for second in tenants:
            low = high = 0.0
            fresh = True
            for moment in moments:
                if first not in moment.waiting or second not in moment.waiting:
                    fresh = True
                    continue
                gap = moment.service[first] - moment.service[second]
                low, high = (gap, gap) if fresh else (min(low, gap), max(high, gap))
                fresh = False
                worst = max(worst, high - low)
    return worst


@st.composite
def crowds(draw: st.DrawFn) -> Crowd:
    """Two or three tenants; some send long requests, some flood; few slots and blocks, with and without a host tier."""
    one: Dice = draw(dice(5))
    slots, num_blocks = one.one_of(1, 2, 3), one.one_of(16, 20, 30)
    crowd = make_crowd(slots, num_blocks, one.one_of(0, 0, 10, 40))
    for number in range(one.one_of(2, 3)):
        step, sends = 1, draw(dice(3))
        flood, most = sends.one_of(0, 0, 1), sends.one_of(4, 12, 24)
        for each in draw(st.lists(dice(3), min_size=3, max_size=16)):
            step += 0 if flood else each.one_of(0, 1, 4)
            crowd.send(step, f"t{number}", 1 + each.below(most), 1 + each.below(most))
    return crowd


@examples(0.05)
@given(crowd=crowds())
def test_tenants_that_wait_differ_in_service_by_a_bounded_amount(crowd: Crowd) -> None:
    """Theorem 4.4: over any span in which both wait, by at most twice the bound on their counters."""
    run, checker = crowd.run()
    assert set(run.finished.values()) == {"length"}
    tenants = sorted(checker.service)
    assert worst_difference(checker.moments, tenants) <= 2 * crowd.bound


def last_moment_all_wait(checker: ServiceChecker) -> Moment:
    """The last moment in which every tenant was backlogged."""
    return [moment for moment in checker.moments if len(moment.waiting) == len(checker.service)][-1]


@pytest.mark.parametrize("names", ["ab", "abc"])
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_backlogged_tenants_share_alike_even_if_one_floods(names: str, slots: int) -> None:
    """Tenant a sends ten times as much, all before the others; each gets its share, to within one request a slot."""
    crowd = make_crowd(slots, num_blocks=100)
    for number in range(80):
        crowd.send(1, "a", 8, 6)
        if number % 10 == 0:
            for name in names[1:]:
                crowd.send(2, name, 8, 6)
    _, checker = crowd.run()
    shares = last_moment_all_wait(checker).service.values()
    assert min(shares) >= 4 * (8 + 2 * 6)
    assert max(shares) - min(shares) <= slots * (8 + 2 * 6)


def test_long_and_short_requests_are_weighed_by_their_tokens() -> None:
    """Tenant a sends requests of four times the size; b gets four times as many of its own done."""
    crowd = make_crowd(2, num_blocks=100)
    for _ in range(40):
        crowd.send(1, "a", 16, 16)
        crowd.send(1, "b", 4, 4)
    run, checker = crowd.run()
    last = last_moment_all_wait(checker)
    assert abs(last.service["a"] - last.service["b"]) <= 16 + 2 * 16 + 4 + 2 * 4
    ended = [name[0] for name, steps in run.token_steps.items() if steps[-1] <= last.step]
    assert ended.count("b") == pytest.approx(4 * ended.count("a"), abs=6)


def test_several_starts_of_one_step_take_turns() -> None:
    """Algorithm 2 asks who was served least before every start, not once a step."""
    crowd = make_crowd(4, num_blocks=100)
    for tenant in "aaaabbbb":
        crowd.send(1, tenant, 4, 4)
    run, _ = crowd.run()
    assert [row.request_id for row in run.plans[0].admitted] == ["a0", "b4", "a1", "b5"]


def test_tenants_that_are_gone_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy is told only of those that got tokens, however many there ever were."""
    told: list[tuple[list[str], list[int]]] = []
    monkeypatch.setattr(FairShare, "delivered", lambda _, names, tokens: told.append((names, tokens.tolist())))
    crowd = make_crowd(2, num_blocks=100)
    for step, tenant in ((1, "a"), (1, "a"), (9, "b"), (12, "c")):
        crowd.send(step, tenant, 4, 6)
    crowd.run()
    assert told[0] == (["a"], [2])
    assert told[-1] == (["c"], [1])
    assert (["b", "c"], [1, 1]) in told


def test_being_away_saves_up_nothing() -> None:
    """Tenant b comes when a was served a lot; it does not get a's service in advance, they share from then on."""
    crowd = make_crowd(1, num_blocks=100)
    for _ in range(30):
        crowd.send(1, "a", 4, 4)
    for _ in range(10):
        crowd.send(60, "b", 4, 4)
    run, _ = crowd.run()
    starts = [event.request_id[0] for event in run.admissions if event.step > 60]
    assert starts[:12] in (list("ba" * 6), list("ab" * 6))
