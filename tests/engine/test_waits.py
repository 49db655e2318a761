"""Since when a request waits: the cheap log says what a look at every request after every step would say."""

from __future__ import annotations

import numpy as np
import pytest

from headway.config import SamplingParams
from headway.core.events import Admitted
from headway.core.reasons import ReasonCode
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from headway.engine.waits import Mark, WaitLog
from headway.sim.fake import FakeExecutor
from tests.engine.builders import make_scheduler


class EveryStep:
    """The definition: ask for every request after every step, and note when its reason changed."""

    def __init__(self) -> None:
        self.since: dict[str, tuple[ReasonCode | None, Mark]] = {}
        self.arrived: dict[str, Mark] = {}
        self.shared = ReasonCode.QUEUE_POSITION

    def add(self, name: str, mark: Mark) -> None:
        self.arrived[name] = mark

    def observe(self, scheduler: Scheduler, names: list[str], now: float, moved: set[str]) -> None:
        for name in names:
            reason = scheduler.wait_reason(name)
            code = reason.code if reason is not None else None
            mark = Mark(scheduler.step, now)
            if name not in self.since:
                self.since[name] = (code, self._first(name, code, mark))
            elif self.since[name][0] is not code or name in moved:
                self.since[name] = (code, mark)
        self.shared = scheduler.step_reasons().rest

    def _first(self, name: str, code: ReasonCode | None, mark: Mark) -> Mark:
        """A reason that the queue had when it arrived holds since then."""
        return self.arrived[name] if code is self.shared else mark


def drive(seed: int, **overrides: object) -> dict[ReasonCode | None, int]:
    """Run a random workload, comparing after every step; how often each reason was compared."""
    random = np.random.default_rng(seed)
    scheduler = make_scheduler(**overrides)
    executor = FakeExecutor(block_size=scheduler.cache.block_size)
    log, brute = WaitLog(scheduler.config.max_num_seqs, 0.0), EveryStep()
    compared: dict[ReasonCode | None, int] = {}
    live: dict[str, Request] = {}
    now = 0.0
    while now < 60 or live:
        now += 1.0
        for _ in range(int(random.integers(0, 3)) if now < 60 else 0):
            name = f"r{len(brute.arrived)}"
            prompt = random.integers(0, 3, int(random.integers(1, 40)))
            request = Request(name, prompt, SamplingParams(max_tokens=int(random.integers(1, 20))))
            scheduler.add(request, now)
            live[name] = request
            brute.add(name, Mark(scheduler.step, now))
        if live and random.random() < 0.1:
            scheduler.abort(list(live.values())[int(random.integers(len(live)))].handle, now)
        plan = scheduler.schedule(now)
        if plan.num_rows:
            executor.submit(plan)
            scheduler.update(plan, executor.collect(), now)
        events = scheduler.take_events()
        live = {name: request for name, request in live.items() if request.finish_reason is None}
        log.observe(scheduler.step_reasons(), events, now)
        entered = {event.request_id for event in events if isinstance(event, Admitted)}
        brute.observe(scheduler, list(live), now, entered)
        waits, seen = log.copy(), scheduler.inspect()
        for place, waiter in enumerate(seen.waiting):
            code, since = brute.since[waiter.request_id]
            assert (seen.reason_of_waiter(place).code, waits.of_waiter(waiter.handle)) == (code, since), waiter
            compared[code] = compared.get(code, 0) + 1
        for row, name in enumerate(seen.rows.request_ids):
            code, since = brute.since[name]
            reason = seen.reason_of_row(row)
            assert (reason.code if reason is not None else None, waits.of_row(int(seen.rows.slots[row]))) == (
                code,
                since,
            )
            compared[code] = compared.get(code, 0) + 1
    assert not log._own and not log._rest, "what has ended is forgotten"
    return compared


@pytest.mark.parametrize("seed", range(8))
def test_it_agrees_with_a_look_at_every_request(seed: int) -> None:
    compared = drive(seed, num_blocks=18, max_num_batched_tokens=24)

    assert {None, ReasonCode.QUEUE_POSITION, ReasonCode.KV_SHORT} <= compared.keys()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"prefill_schedule_interval": 4}, ReasonCode.PREFILL_CADENCE),
        ({"long_prefill_token_threshold": 8, "max_num_batched_tokens": 12}, ReasonCode.LONG_PREFILL_CAP),
        ({"num_blocks": 12, "max_num_batched_tokens": 16}, ReasonCode.PREEMPTED),
        ({"max_num_batched_tokens": 16}, ReasonCode.SLOTS_FULL),
        ({"num_blocks": 20, "num_host_blocks": 30}, ReasonCode.KV_SHORT),
    ],
)
def test_it_agrees_under_every_rule(overrides: dict[str, int], expected: ReasonCode) -> None:
    assert drive(1, **overrides)[expected] > 0
