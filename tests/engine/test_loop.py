"""The loop: order of outputs, aborts before outputs, errors that stay where they happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headway.config import SamplingParams
from headway.core.events import Admitted, Finished, Queued
from headway.core.plan import StepPlan, StepResult
from headway.core.request import FinishReason, Request, RequestRefused
from headway.engine.loop import EngineLoop, StepReport
from headway.sim.fake import FakeExecutor
from tests.engine.builders import ScriptedExecutor, echo, make_scheduler, ticking_clock


def test_an_end_of_text_id_that_the_client_names_is_its_stop() -> None:
    """With the model's own end ignored, what ends the output is the client's, and is said so."""
    ends = {}
    for name, sampling in {
        "own": SamplingParams(max_tokens=9),
        "named": SamplingParams(max_tokens=9, ignore_eos=True, stop_token_ids=(257,)),
        "both": SamplingParams(max_tokens=9, stop_token_ids=(257,)),
        "late": SamplingParams(max_tokens=9, ignore_eos=True, stop_token_ids=(257,), min_tokens=9),
    }.items():
        run = Run(ScriptedExecutor(lambda name, prompt: [7, 257] * 5))
        run.loop.add(Request(name, [1, 2], sampling, eos_token_ids=(257,)))
        run._names[1], run.tokens[name] = name, []
        ends[name] = run.drain().ends[name]

    assert {name: (end.reason.value, end.stop_token_id) for name, end in ends.items()} == {
        "own": ("stop", None),
        "named": ("stop", 257),
        "both": ("stop", None),
        "late": ("length", None),
    }


class Run:
    """A loop over a small scheduler, without text, and what came out of it.

    Attributes:
        tokens: by request id.
        ends: the last event of each request.
    """

    def __init__(self, executor: Any, *, depth: int = 1, isolate_errors: bool = True, **overrides: Any) -> None:
        self.loop = EngineLoop(
            make_scheduler(**overrides), executor, ticking_clock(), depth=depth, isolate_errors=isolate_errors
        )
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, Finished] = {}
        self._names: dict[int, str] = {}

    def add(self, *names: str, prompt: int = 5, max_tokens: int = 3) -> None:
        """Add requests that generate exactly ``max_tokens``."""
        for name in names:
            tokens = [ord(name[0]) + place for place in range(prompt)]
            request = Request(name, tokens, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
            self.loop.add(request)
            self._names[request.handle] = name
            self.tokens[name] = []

    def abort(self, name: str) -> None:
        """Abort a request by its name."""
        self.loop.abort(next(handle for handle, known in self._names.items() if known == name))

    def step(self) -> StepReport:
        """One step, noted down."""
        report = self.loop.step()
        self.ends.update((event.request_id, event) for event in report.events if isinstance(event, Finished))
        if report.output is not None:
            for handle, row in zip(report.output.handles.tolist(), report.output.tokens.tolist(), strict=True):
                self.tokens[self._names[handle]].append(row[0])
        self.loop.scheduler.check_invariants()
        return report

    def drain(self) -> Run:
        """Step until nothing is left."""
        for _ in range(500):
            if not self.loop.has_work:
                return self
            self.step()
        raise AssertionError("the loop does not come to an end")

    def reasons(self) -> dict[str, FinishReason]:
        """Why each request ended."""
        return {name: end.reason for name, end in self.ends.items()}


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_every_request_gets_its_tokens_in_order(depth: int) -> None:
    executor = ScriptedExecutor(echo)
    run = Run(executor, depth=depth, max_num_seqs=2)
    run.add("a", "b", "c", max_tokens=7)

    run.drain()

    expected = {name: ([ord(name) + place for place in range(5)] * 2)[:7] for name in "abc"}
    assert run.tokens == expected
    assert run.reasons() == dict.fromkeys("abc", FinishReason.LENGTH)


def test_depth_is_the_number_of_plans_in_flight() -> None:
    flying, most = 0, 0

    def count(change: int) -> Callable[[StepPlan], None]:
        def change_count(plan: StepPlan) -> None:
            nonlocal flying, most
            flying += change
            most = max(most, flying)

        return change_count

    run = Run(ScriptedExecutor(echo, before=count(1), during=count(-1)), depth=3)
    run.add("a", "b", max_tokens=8)
    run.drain()

    assert (flying, most) == (0, 3)


@pytest.mark.parametrize("depth", [1, 2])
def test_preemption_changes_no_output(depth: int) -> None:
    def outputs(num_blocks: int) -> tuple[dict[str, list[int]], int]:
        run = Run(FakeExecutor(block_size=4), depth=depth, isolate_errors=False, num_blocks=num_blocks)
        run.add("a", "b", "c", prompt=9, max_tokens=20)
        return run.drain().tokens, sum(run.loop.metrics.counters.preemptions.values())

    roomy, none = outputs(100)
    tight, some = outputs(10)
    assert (none, some > 0) == (0, True)
    assert tight == roomy


def test_a_step_that_cannot_be_submitted_ends_its_requests_only() -> None:
    def fail(plan: StepPlan) -> None:
        if plan.step == 2:
            raise ValueError("out of memory")

    run = Run(ScriptedExecutor(echo, before=fail), max_num_seqs=2)
    run.add("a", "b", "c", "d")

    run.drain()

    assert [run.ends[name].reason for name in "abcd"] == [FinishReason.ERROR] * 2 + [FinishReason.LENGTH] * 2
    assert run.ends["a"].message == "the step failed: ValueError: out of memory"
    assert [len(run.tokens[name]) for name in "abcd"] == [1, 1, 3, 3]
    assert run.loop.metrics.counters.steps_failed == 1


@pytest.mark.parametrize("depth", [1, 2])
def test_a_result_that_cannot_be_had_ends_the_requests_of_its_step_only(depth: int) -> None:
    def fail(plan: StepPlan) -> None:
        if plan.step == 2:
            raise RuntimeError("lost")

    run = Run(ScriptedExecutor(echo, during=fail), depth=depth)
    run.add("a")
    run.step()
    run.add("b")

    run.drain()

    assert run.ends["a"].reason is FinishReason.ERROR
    assert run.ends["b"].reason is (FinishReason.ERROR if depth == 1 else FinishReason.LENGTH)
    assert len(run.tokens["a"]) == 1
    run.add("z")
    assert run.drain().ends["z"].reason is FinishReason.LENGTH


def test_a_result_that_does_not_fit_its_plan_is_an_error_of_that_step() -> None:
    class Confused(ScriptedExecutor):
        def collect(self) -> StepResult:
            result = super().collect()
            return result if result.step != 1 else StepResult(1, result.tokens[:0], result.counts[:0])

    run = Run(Confused(echo))
    run.add("a")

    run.drain()

    assert "1 rows" in run.ends["a"].message
    assert "0 rows" in run.ends["a"].message


def test_errors_can_be_let_through() -> None:
    def fail(plan: StepPlan) -> None:
        raise ValueError("broken")

    run = Run(ScriptedExecutor(echo, before=fail), isolate_errors=False)
    run.add("a")

    with pytest.raises(ValueError, match="broken"):
        run.step()


def test_an_interrupt_goes_through_and_the_loop_can_go_on() -> None:
    pressed = [True]

    def interrupt(plan: StepPlan) -> None:
        if plan.step == 2 and pressed.pop():
            raise KeyboardInterrupt

    run = Run(ScriptedExecutor(echo, during=interrupt), max_num_seqs=1)
    run.add("a", "b")

    run.step()
    with pytest.raises(KeyboardInterrupt):
        run.step()
    run.drain()

    assert run.ends["a"].reason is FinishReason.ERROR
    assert len(run.tokens["b"]) == 3


def test_the_result_of_a_step_that_was_interrupted_is_not_taken_for_the_next() -> None:
    class Interrupted(ScriptedExecutor):
        def submit(self, plan: StepPlan) -> None:
            super().submit(plan)
            if plan.step == 2:
                raise KeyboardInterrupt

    run = Run(Interrupted(echo), max_num_seqs=1)
    run.add("a", "b")

    run.step()
    with pytest.raises(KeyboardInterrupt):
        run.step()
    run.drain()

    assert run.reasons() == {"a": FinishReason.ERROR, "b": FinishReason.LENGTH}
    assert run.tokens["b"] == [98, 99, 100]


def test_an_abort_that_comes_while_the_step_runs_goes_before_its_outputs() -> None:
    run: Run

    def abort(plan: StepPlan) -> None:
        if plan.step == 2:
            run.abort("a")

    run = Run(ScriptedExecutor(echo, during=abort))
    run.add("a", "b")

    run.drain()

    assert run.ends["a"].reason is FinishReason.ABORT
    assert (len(run.tokens["a"]), len(run.tokens["b"])) == (1, 3)
    assert run.loop.scheduler.kv.pool.num_free == 100


def test_an_abort_in_the_last_step_is_an_abort() -> None:
    run: Run
    run = Run(ScriptedExecutor(echo, during=lambda plan: run.abort("a")))
    run.add("a", max_tokens=1)

    run.drain()

    assert run.ends["a"].reason is FinishReason.ABORT
    assert run.tokens["a"] == []


def test_aborting_a_waiting_or_unknown_request_is_no_error() -> None:
    run = Run(ScriptedExecutor(echo))
    run.add("a")
    run.loop.abort(99)
    run.abort("a")

    assert run.loop.has_work
    run.drain()

    assert (run.tokens["a"], run.ends["a"].reason) == ([], FinishReason.ABORT)
    assert run.loop.scheduler.step == 0


def test_a_refused_request_leaves_nothing() -> None:
    run = Run(ScriptedExecutor(echo))

    with pytest.raises(RequestRefused):
        run.add("a", prompt=128)

    assert not run.loop.has_work


def test_the_report_has_events_in_order() -> None:
    run = Run(ScriptedExecutor(echo))
    run.add("a", max_tokens=1)

    events = run.step().events

    assert [type(event) for event in events] == [Queued, Admitted, Finished]


def test_an_idle_loop_schedules_nothing() -> None:
    executor = ScriptedExecutor(echo)
    run = Run(executor)

    report = run.step()

    assert (report.plan, report.output, report.events, executor.plans) == (None, None, (), [])


def test_a_request_that_outgrows_the_memory_ends_without_a_plan() -> None:
    run = Run(ScriptedExecutor(echo), num_blocks=3)
    run.add("a", prompt=11, max_tokens=9)

    run.drain()

    assert run.ends["a"].reason is FinishReason.KV_CAPACITY
    assert len(run.tokens["a"]) == 2
    assert np.isclose(run.loop.scheduler.kv.pool.num_free, 3)


def test_a_fault_of_admission_ends_one_request_with_an_error_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(ScriptedExecutor(echo))
    for name in "abc":
        run.add(name)
    policy = run.loop.scheduler._state.policy

    def holds(request: Request, view: object) -> None:
        if request.request_id == "b":
            raise KeyError("missing")

    policy.holds = holds  # type: ignore[method-assign]
    run.drain()

    assert {name: end.reason.value for name, end in run.ends.items()} == {"a": "length", "b": "error", "c": "length"}
    assert "KeyError: 'missing'" in run.ends["b"].message
    assert "KeyError" in caplog.text


def test_whoever_cannot_be_announced_is_not_entered() -> None:
    run = Run(ScriptedExecutor(echo))

    class FullDisk:
        def add(self, request: Request) -> None:
            raise OSError("no space left")

    run.loop._trace = FullDisk()  # type: ignore[assignment]
    with pytest.raises(OSError, match="no space"):
        run.add("a")
    run.loop._trace = None

    assert not run.loop.has_work
    run.add("a")
    run.drain()
    assert run.ends["a"].reason is FinishReason.LENGTH
