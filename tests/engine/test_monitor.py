"""The monitor remembers the last steps and latencies as they were, and a snapshot is taken between two steps."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from headway.config import SamplingParams
from headway.core.plan import StepPlan
from headway.core.reasons import ReasonCode
from headway.engine.async_engine import AsyncEngine
from headway.engine.engine import Engine
from headway.engine.monitor import NUM_STEPS, EngineSnapshot, Monitor, StepRecord, inter_token_latencies, quantiles
from headway.sim.fake import FakeExecutor
from tests.engine.builders import ScriptedExecutor, echo, make_engine


class Clock:
    """Time goes on when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """An engine with a monitor; every step takes a second."""

    def __init__(self, **overrides: int) -> None:
        self.clock = Clock()
        executor = ScriptedExecutor(lambda name, prompt: [65] * 99, before=self._second)
        self.engine: Engine = make_engine(executor, clock=self.clock, **overrides)
        self.monitor = Monitor(self.engine)

    def _second(self, plan: StepPlan) -> None:
        self.clock.now += 1.0

    def add(self, name: str, prompt: int, max_tokens: int) -> None:
        tokens = [ord(name[0])] * prompt
        self.engine.add(self.engine.prepare(tokens, SamplingParams(max_tokens=max_tokens), request_id=name))

    def steps(self, number: int) -> EngineSnapshot:
        for _ in range(number):
            self.monitor.observe(self.engine.advance(), 1.0)
        return self.monitor.snapshot(0.0)


def test_steps_are_told_apart_by_what_they_computed() -> None:
    watched = Watched(max_num_batched_tokens=8)
    watched.add("a", 3, 5)
    watched.steps(1)
    watched.add("b", 12, 2)
    snapshot = watched.steps(3)

    assert [(step.decode_tokens, step.prefill_tokens, step.rows) for step in snapshot.steps] == [
        (0, 3, 1),
        (1, 7, 2),
        (1, 5, 2),
        (2, 0, 2),
    ]
    assert [(step.running, step.waiting) for step in snapshot.steps] == [(1, 0), (2, 0), (2, 0), (1, 0)]
    assert snapshot.steps[1].kv_usage == pytest.approx(1 - (100 - 3) / 100)
    assert [step.at_s for step in snapshot.steps] == [1.0, 2.0, 3.0, 4.0]
    assert {step.step_s for step in snapshot.steps} == {1.0}
    assert snapshot.steps[0].seconds.keys() == {"schedule", "update", "output"}


def test_only_so_many_steps_are_remembered() -> None:
    watched = Watched(max_model_len=1024, num_blocks=400)
    for name in "abcd":
        watched.add(name, 5, 90)
    watched.steps(100)
    for name in "efgh":
        watched.add(name, 5, 90)
    watched.steps(100)
    for name in "ijkl":
        watched.add(name, 5, 90)
    watched.steps(100)
    for name in "mnop":
        watched.add(name, 5, 90)
    snapshot = watched.steps(100)

    assert snapshot.counters.steps == 360
    assert len(snapshot.steps) == NUM_STEPS
    assert snapshot.steps[-1].step - snapshot.steps[0].step >= NUM_STEPS - 1


def test_latencies_are_those_of_the_requests() -> None:
    watched = Watched(max_num_seqs=1)
    watched.add("a", 5, 4)
    watched.add("b", 5, 3)
    snapshot = watched.steps(8)

    latencies = snapshot.recent
    assert latencies.queue_s.tolist() == [0.0, 4.0]
    assert latencies.ttft_s.tolist() == [1.0, 5.0]
    assert latencies.tpot_s.tolist() == [1.0, 1.0]
    assert latencies.e2e_s.tolist() == [4.0, 7.0]
    assert latencies.reuse.tolist() == [[5, 0], [5, 0]]
    seconds, rows = inter_token_latencies(snapshot.steps)
    assert (seconds.tolist(), rows.tolist()) == ([1.0] * 5, [1.0] * 5)


def test_nothing_is_kept_of_what_ended() -> None:
    watched = Watched(num_blocks=10)
    for name in "abc":
        watched.add(name, 9, 20)
    snapshot = watched.steps(12)
    victims = [waiter for waiter in snapshot.inspection.waiting if waiter.num_preemptions]
    assert [snapshot.setbacks[waiter.handle].by for waiter in victims] == ["a"] * len(victims) != []
    assert all(snapshot.setbacks[waiter.handle].num_lost_tokens > 0 for waiter in victims)

    watched.engine.abort(2)
    watched.steps(100)

    monitor = watched.monitor
    assert (monitor._queued, monitor._prefilling, monitor._setbacks) == ({}, {}, {})


def test_a_pause_between_requests_is_no_latency() -> None:
    before = StepRecord(1, 10.0, 1, 0, 1, 0, 0, 0.1, 1.0, {})
    after = StepRecord(2, 900.0, 1, 0, 1, 1, 0, 0.1, 1.0, {})
    seconds, rows = inter_token_latencies([before, after, after._replace(at_s=901.0)])

    assert (seconds.tolist(), rows.tolist()) == ([1.0], [1.0])
    assert [len(part) for part in inter_token_latencies([])] == [0, 0]


def test_quantiles_are_values_that_occurred() -> None:
    assert quantiles(np.zeros(0)) is None
    assert quantiles(np.array([3.0])) == (3.0, 3.0, 3.0)
    assert quantiles(np.arange(1.0, 101.0)) == (50.0, 90.0, 99.0)
    assert quantiles(np.array([5.0, 1.0]), np.array([1.0, 99.0])) == (1.0, 1.0, 1.0)
    assert quantiles(np.array([5.0, 1.0]), np.array([2.0, 98.0])) == (1.0, 1.0, 5.0)


# --- through the engine's thread -----------------------------------------------------------------------------


def run(coroutine: object) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 20.0))  # type: ignore[arg-type]


def test_a_snapshot_is_made_by_the_thread_and_kept_for_a_while() -> None:
    async def test() -> None:
        engine = AsyncEngine(make_engine(FakeExecutor(block_size=4), clock=Clock()))
        engine.start()
        first = await engine.snapshot()
        same = await engine.snapshot(max_age_s=60.0)
        fresh = await asyncio.gather(*(engine.snapshot(max_age_s=-1.0) for _ in range(5)))
        await engine.stop()

        assert same is first
        assert fresh[0] is not first
        assert all(each is fresh[0] for each in fresh), "those who ask at the same time get the same one"
        assert await engine.snapshot(max_age_s=-1.0) is fresh[0], "a stopped engine is what it last was"

    run(test())


def test_while_a_step_is_stuck_the_last_snapshot_has_to_do() -> None:
    async def test() -> None:
        gate, reached = threading.Event(), threading.Event()

        def stuck(plan: StepPlan) -> None:
            reached.set()
            gate.wait(20.0)

        engine = AsyncEngine(make_engine(ScriptedExecutor(echo, during=stuck), clock=Clock()))
        engine.start()
        stream = engine.submit([engine.engine.prepare("abc", SamplingParams(max_tokens=2), request_id="a")])
        while not reached.is_set():
            await asyncio.sleep(0.001)

        old = await engine.snapshot(max_age_s=-1.0, timeout_s=0.01)
        gate.set()
        async for _ in stream:
            pass
        new = await engine.snapshot(max_age_s=-1.0)
        await engine.stop()

        assert (len(old.inspection.rows), old.counters.steps) == (0, 0)
        assert (new.counters.steps, new.counters.requests_finished["length"]) == (2, 1)

    run(test())


def test_errors_of_the_monitor_reach_no_request(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        engine = AsyncEngine(make_engine(ScriptedExecutor(echo), clock=Clock()))
        engine._worker._monitor._record = None  # type: ignore[union-attr, assignment]
        engine.start()
        stream = engine.submit([engine.engine.prepare("abc", SamplingParams(max_tokens=2), request_id="a")])
        texts = [update.text async for updates in stream for _, update in updates]
        snapshot = await engine.snapshot(max_age_s=-1.0)
        await engine.stop()

        assert "".join(texts) == "ab"
        assert snapshot.counters.steps == 0

    run(test())
    assert "the monitor failed" in caplog.text


def test_a_waiting_request_is_seen_with_its_reason_and_since_when() -> None:
    watched = Watched(max_num_seqs=1)
    watched.add("a", 5, 30)
    watched.steps(3)
    watched.add("b", 5, 30)
    snapshot = watched.steps(4)

    [waiter] = snapshot.inspection.waiting
    assert snapshot.inspection.reason_of_waiter(0).code is ReasonCode.SLOTS_FULL
    assert snapshot.waits.of_waiter(waiter.handle) == (4, 4.0)
    assert snapshot.waits.of_row(0) == (1, 1.0)
