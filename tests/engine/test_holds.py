"""A policy that holds requests back by time lets the engine rest, and a stuck scheduler is still a bug."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headway.cli.prompts import Job
from headway.cli.replay import Replay
from headway.cli.runner import run_jobs
from headway.config import SamplingParams
from headway.core import Hold, Policy, Request, Scheduler, StepPlan
from headway.core.events import Finished
from headway.core.policies import POLICIES
from headway.core.policies.base import PolicyView
from headway.core.reasons import ReasonCode
from headway.core.rest import MAX_IDLE_STEPS, POLL_S
from headway.engine.async_engine import AsyncEngine, EngineDead, UpdateStream
from headway.engine.engine import Engine, EngineStalled
from headway.engine.llm import OfflineLLM
from headway.engine.trace import TraceHeader, TraceReader, TraceWriter
from tests.engine.builders import ScriptedExecutor, echo, make_engine, make_scheduler
from tests.support.gate import PATIENCE_S

AGES_MS = 2_000_000_000
"""Far longer than any test waits."""


class Curfew(Policy):
    """Holds requests of priority p for p milliseconds after their arrival, and says until when unless p is odd."""

    def order_key(self, request: Request) -> tuple[int, float, int]:
        return (0, 0.0, request.handle)

    def holds(self, request: Request, view: PolicyView) -> Hold | None:
        until_s = request.arrival_s + request.priority / 1000
        if view.now >= until_s:
            return None
        return Hold("curfew", None if request.priority % 2 else until_s)


@pytest.fixture(autouse=True)
def _curfew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "curfew", Curfew)


class Sleeper:
    """A clock that goes on only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sleeps: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


def sleeping_engine(**options: Any) -> tuple[Engine, Sleeper]:
    sleeper = Sleeper()
    engine = make_engine(ScriptedExecutor(echo), clock=sleeper, scheduling_policy="curfew", **options)
    engine.sleep = sleeper.sleep
    return engine, sleeper


def drain(engine: Engine) -> Iterator[str]:
    while engine.has_work:
        yield from (update.request_id for update in engine.step() if update.output is not None)


def test_steps_sleep_until_the_first_hold_ends() -> None:
    engine, sleeper = sleeping_engine()
    for name, hold_ms in (("a", 3000), ("b", 500), ("c", 0)):
        engine.add(engine.prepare([1], SamplingParams(max_tokens=1), request_id=name, priority=hold_ms))

    assert list(drain(engine)) == ["c", "b", "a"]
    assert sleeper.sleeps == [0.5, 2.5]
    assert sum(sleeper.sleeps) == 3.0


def test_a_hold_that_does_not_say_how_long_it_lasts_is_looked_at_now_and_then() -> None:
    engine, sleeper = sleeping_engine()
    engine.add(engine.prepare([1], SamplingParams(max_tokens=1), request_id="a", priority=3001))

    assert list(drain(engine)) == ["a"]
    assert {round(seconds, 6) for seconds in sleeper.sleeps} == {POLL_S}
    assert len(sleeper.sleeps) == pytest.approx(301, abs=1)


def test_a_request_that_comes_or_goes_ends_the_pause() -> None:
    engine, sleeper = sleeping_engine()
    held = engine.add(engine.prepare([1], request_id="a", priority=30_000))
    engine.step()  # it came
    engine.step()
    pauses = [engine.pause_s]
    engine.add(engine.prepare([1], SamplingParams(max_tokens=1), request_id="b"))
    pauses.append(engine.pause_s)
    assert [update.request_id for update in engine.step()] == ["b"]
    engine.step()
    pauses.append(engine.pause_s)
    engine.abort(held)
    pauses.append(engine.pause_s)

    assert pauses == [30.0, 0.0, 30.0, 0.0]
    assert (list(drain(engine)), sleeper.sleeps) == (["a"], [])


def test_jobs_of_the_command_line_wait_for_their_time() -> None:
    engine, sleeper = sleeping_engine()
    jobs = [Job("a", "line 1", SamplingParams(max_tokens=1), service={"priority": 700}, text="x")]

    assert [output.finish_reason for _, output in run_jobs(engine, jobs)] == ["length"]
    assert sleeper.sleeps == pytest.approx([0.7])


def test_programs_wait_for_their_time_without_stepping_in_vain() -> None:
    """The request of the issue: 0.3 seconds, which were 16 steps in a few milliseconds and an EngineStalled."""
    engine = make_engine(ScriptedExecutor(echo), clock=time.monotonic, scheduling_policy="curfew")

    [output] = OfflineLLM(engine).generate("abc", SamplingParams(max_tokens=3), priority=300)

    assert output.text == "abc"
    assert output.metrics is not None and output.metrics.queue_s is not None
    assert output.metrics.queue_s >= 0.3
    assert engine.scheduler.step < 3 + MAX_IDLE_STEPS


def test_a_program_that_rests_is_woken_by_a_call_of_another_thread() -> None:
    engine = make_engine(ScriptedExecutor(echo), clock=time.monotonic, scheduling_policy="curfew")
    llm = OfflineLLM(engine)
    stream = llm.stream("held", SamplingParams(max_tokens=3), priority=AGES_MS)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(list, stream)
        while not engine.pause_s:
            time.sleep(0.001)
        [output] = llm.generate("abc", SamplingParams(max_tokens=3))
        stream.close()

        assert (output.text, held.result(PATIENCE_S)) == ("abc", [])
    assert not engine.scheduler.has_unfinished


def test_the_thread_of_the_engine_waits_for_orders_while_it_rests() -> None:
    async def test() -> None:
        engine = AsyncEngine(make_engine(ScriptedExecutor(echo), clock=time.monotonic, scheduling_policy="curfew"))
        engine.start()

        def submit(name: str, hold_ms: int) -> UpdateStream:
            sampling = SamplingParams(max_tokens=3)
            return engine.submit([engine.engine.prepare("abc", sampling, request_id=name, priority=hold_ms)])

        held, short = submit("held", AGES_MS), submit("short", 30)
        texts = [update.output.text async for updates in short for _, update in updates if update.output]
        while engine.heartbeat.busy:
            await asyncio.sleep(0.001)
        late = submit("late", 0)
        texts += [update.output.text async for updates in late for _, update in updates if update.output]
        reason = (await engine.snapshot(max_age_s=0)).inspection.waiting_counts()[ReasonCode.POLICY_HOLD]
        engine.abort(held.serials)
        ends = [update.output.finish_reason async for updates in held for _, update in updates if update.output]
        await engine.stop()

        assert (texts, reason, ends) == (["abc", "abc"], 1, ["abort"])
        assert engine.engine.scheduler.step < 50

    asyncio.run(asyncio.wait_for(test(), PATIENCE_S))


def test_a_run_with_holds_can_be_made_again_from_its_trace() -> None:
    text = io.StringIO()
    scheduler = make_scheduler(scheduling_policy="curfew")
    writer = TraceWriter(text, TraceHeader("0.0", scheduler.config, scheduler.cache))
    engine, _ = sleeping_engine(trace=writer)
    for name, hold_ms in (("a", 3000), ("b", 500), ("c", 0), ("d", 21)):
        engine.add(engine.prepare([1], SamplingParams(max_tokens=2), request_id=name, priority=hold_ms))
    list(drain(engine))
    writer.flush()

    steps = list(Replay(TraceReader(io.StringIO(text.getvalue()))))

    assert [reason.until_s for reason in steps[0].reasons.values()] == [103.0, 100.5, None]
    assert {reason.why for step in steps for reason in step.reasons.values()} == {"curfew"}
    assert [event.request_id for step in steps for event in step.events if isinstance(event, Finished)] == list("cdba")


@pytest.fixture
def _stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that serves nobody and cannot say why."""
    real = Scheduler.schedule

    def schedule(self: Scheduler, now: float) -> StepPlan:
        return real(Scheduler(self.config, self.cache), now)

    monkeypatch.setattr(Scheduler, "schedule", schedule)


@pytest.mark.usefixtures("_stuck")
def test_a_stuck_scheduler_is_reported_at_once() -> None:
    engine, sleeper = sleeping_engine()
    engine.add(engine.prepare([1], request_id="a", priority=3000))

    engine.step()  # it came
    for _ in range(MAX_IDLE_STEPS - 1):
        engine.step()
    with pytest.raises(EngineStalled, match="a \\(waiting\\)"):
        engine.step()

    assert sleeper.sleeps == []


@pytest.mark.usefixtures("_stuck")
def test_programs_hear_of_a_stuck_scheduler_and_can_close() -> None:
    llm = OfflineLLM(make_engine(ScriptedExecutor(echo)))

    with pytest.raises(EngineStalled):
        llm.generate("abc")
    llm.close()


@pytest.mark.usefixtures("_stuck")
def test_streams_hear_of_a_stuck_scheduler() -> None:
    async def test() -> None:
        engine = AsyncEngine(make_engine(ScriptedExecutor(echo)))
        engine.start()
        stream = engine.submit([engine.engine.prepare("abc", request_id="a")])

        with pytest.raises(EngineDead, match="EngineStalled"):
            await stream.take()
        await engine.stop()

    asyncio.run(asyncio.wait_for(test(), PATIENCE_S))
