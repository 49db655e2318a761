"""The engine's loop: schedule, submit, collect, update, report; over and over.

It has no thread and no event loop of its own: whoever owns it calls :meth:`EngineLoop.step`. Requests are known by
the handle that the scheduler gave them: their names may be used again, handles never are.

Errors: whatever goes wrong while a step is computed ends the requests of that step, and nothing else. Whatever goes
wrong while requests are admitted ends the one that was looked at (core/recovery.py). Any other exception of the
scheduler is a bug after which its state cannot be trusted, and goes to the caller.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from headway.core.events import Event, Finished, StepOutput
from headway.core.plan import StepPlan, StepResult
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from headway.engine.metrics import EngineMetrics
from headway.engine.outputs import RequestUpdate
from headway.engine.processor import OutputProcessor
from headway.engine.trace import TraceWriter

logger = logging.getLogger(__name__)

Clock = Callable[[], float]
"""Seconds since some moment, never going back."""


class Executor(Protocol):
    """Runs plans. Every ``submit`` that returns is answered by one ``collect``, in the same order.

    After an exception of either, the plan counts as never taken in (``StepResult.lost_plan``): its requests end, what
    it was to copy to the host is lost, and its released slots may be admitted again without another word.
    """

    def submit(self, plan: StepPlan) -> None:
        """Start a plan. If it raises, there is nothing to collect."""

    def collect(self) -> StepResult:
        """Wait for the oldest plan in flight. If it raises, that plan is done with."""


@dataclass
class _Flight:
    """A plan on its way; ``error`` says why no result will come."""

    plan: StepPlan
    error: BaseException | None = None


@dataclass(frozen=True)
class StepReport:
    """What one call of :meth:`EngineLoop.step` did.

    Attributes:
        plan: the plan whose result was taken in; ``None`` if no plan was in flight.
        output: what the scheduler delivered for it.
        events: lifecycle events since the last report, in order.
        updates: for the clients.
        seconds: what the parts of the step took, by phase (``metrics.PHASES``).
    """

    plan: StepPlan | None
    output: StepOutput | None
    events: tuple[Event, ...]
    updates: tuple[RequestUpdate, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)


class EngineLoop:
    """Drives one scheduler and one executor.

    Args:
        scheduler: not used by anybody else from now on.
        executor: the same.
        clock: what time it is. Decisions depend on it only where the policy does.
        processor: makes the clients' outputs; without one (simulation) requests just run.
        metrics: where to count.
        trace: where to write what was decided.
        depth: plans in flight at most. With 1, a step is scheduled when the last one has been taken in.
        isolate_errors: ``False`` lets the executor's exceptions through, for tests and simulations.
        executor_times: seconds that the parts of the executor's last step took, by phase.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        *,
        processor: OutputProcessor | None = None,
        metrics: EngineMetrics | None = None,
        trace: TraceWriter | None = None,
        depth: int = 1,
        isolate_errors: bool = True,
        executor_times: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.processor = processor
        self.metrics = metrics if metrics is not None else EngineMetrics()
        self._executor = executor
        self.clock = clock
        self._trace = trace
        self._depth = depth
        self._isolate_errors = isolate_errors
        self._executor_times = executor_times
        self._flights: deque[_Flight] = deque()
        self._aborts: deque[int] = deque()
        self._events: list[Event] = []
        self._seconds: dict[str, float] = {}
        """Parts of the step being made."""

    # --- requests come and go ------------------------------------------------------------------------------

    def add(self, request: Request, prompt_text: str | None = None) -> int:
        """Enter a request.

        Returns:
            Its handle.

        Raises:
            RequestRefused: it can never be served, or its id is taken. Nothing is kept of it, whatever is raised.
        """
        outlet = self.processor.open(request, prompt_text) if self.processor is not None else None
        self.scheduler.add(request, self.clock())
        try:
            self.metrics.added(request)
            if self._trace is not None:
                self._trace.add(request)
            if self.processor is not None and outlet is not None:
                self.processor.add(request.handle, outlet)
        except BaseException:
            self.scheduler.take_back(request)
            raise
        self._settle_events()
        return request.handle

    def abort(self, handle: int) -> None:
        """Have a request ended before anything else of it is delivered. Handles of ended requests are ignored."""
        self._aborts.append(handle)

    def apply_aborts(self) -> None:
        """End what was to be aborted now. Every step does so by itself, at its beginning and before its outputs."""
        while self._aborts:
            self._end(self._aborts.popleft(), "client")
        self._settle_events()

    @property
    def has_work(self) -> bool:
        """Whether another step has something to do or to tell."""
        if self.scheduler.has_unfinished or self._flights or self._aborts:
            return True
        return self.processor is not None and self.processor.has_updates

    # --- the step ------------------------------------------------------------------------------------------

    def step(self, late_aborts: Callable[[], Iterable[int]] = tuple) -> StepReport:
        """Run one step: fill the pipe of plans, then take in the result of the oldest one.

        Args:
            late_aborts: asked for handles of requests to end after the wait for the result, before its outputs.
        """
        self.apply_aborts()
        self._launch()
        landed = self._collect(late_aborts)
        output = self._update(*landed) if landed is not None else None
        return self._report(landed[0] if landed is not None else None, output)

    def _launch(self) -> None:
        """Schedule and submit plans until enough are in flight or there is nothing to run."""
        while len(self._flights) < self._depth and self.scheduler.has_unfinished:
            if self._flights and self._flights[-1].error is not None:
                return  # nothing is built on a plan of which it is not known what the executor made
            start_s = self.clock()
            plan = self.scheduler.schedule(start_s)
            self._log_faults()
            self._count_phase("schedule", start_s)
            if self._trace is not None:
                self._trace.plan(plan, start_s)
            self._settle_events()
            if not plan.num_rows:
                return
            flight = _Flight(plan)
            self._flights.append(flight)
            with self._isolated(flight):
                self._executor.submit(plan)

    def _log_faults(self) -> None:
        """Keep a log of what broke admissions off; the requests concerned have ended."""
        for fault in self.scheduler.take_faults():
            if not self._isolate_errors:
                raise fault
            logger.error("admission broke off; the request it was about has ended", exc_info=fault)

    def _collect(self, late_aborts: Callable[[], Iterable[int]]) -> tuple[StepPlan, StepResult] | None:
        """Wait for the oldest plan in flight; then the aborts that came meanwhile are due, before its outputs."""
        if not self._flights:
            return None
        flight = self._flights[0]
        result = None
        if flight.error is None:
            with self._isolated(flight):
                result = self._matching_result(flight.plan)
        self._flights.popleft()
        self._aborts.extend(late_aborts())
        self.apply_aborts()
        if result is None:
            self.metrics.counters.steps_failed += 1
            result = _failed_result(flight.plan, flight.error)
        return flight.plan, result

    def _matching_result(self, plan: StepPlan) -> StepResult:
        """The executor's result for ``plan``."""
        result = self._executor.collect()
        while result.step < plan.step:  # of a step that was interrupted while its result was awaited
            result = self._executor.collect()
        if result.step != plan.step or len(result.counts) != plan.num_rows:
            raise RuntimeError(
                f"the executor answered plan {plan.step} ({plan.num_rows} rows) with a result for step"
                f" {result.step} ({len(result.counts)} rows)"
            )
        return result

    def _update(self, plan: StepPlan, result: StepResult) -> StepOutput:
        """Take in a result: the scheduler first, then the clients' outputs."""
        now = self.clock()
        if self._trace is not None:
            self._trace.result(result)
        output = self.scheduler.update(plan, result, now)
        self.metrics.output(plan, output, now)
        self.metrics.preemption_costs.observe(plan, result, self.scheduler.seconds_per_token)
        self._count_phase("update", now)
        if self._executor_times is not None:
            for phase, seconds in self._executor_times().items():
                self._add_phase(phase, seconds)
        start_s = self.clock()
        if self.processor is not None:
            to_end = self.processor.deliver(plan, result, output)
            self._settle_events()
            for handle, why in to_end.items():
                self._end(handle, why)
        self._settle_events()
        self._count_phase("output", start_s)
        return output

    def _report(self, plan: StepPlan | None, output: StepOutput | None) -> StepReport:
        """Hand out what happened since the last report."""
        events, self._events = self._events, []
        updates = self.processor.take_updates() if self.processor is not None else []
        self.metrics.counters.generation_tokens += sum(len(update.token_ids) for update in updates)
        if self._trace is not None:
            if plan is not None:
                self._trace.times(plan.step, self.clock(), self._seconds)
            if not self.has_work:
                self._trace.flush()
        seconds, self._seconds = self._seconds, {}
        return StepReport(plan, output, tuple(events), tuple(updates), seconds)

    # --- parts of it ---------------------------------------------------------------------------------------

    def _end(self, handle: int, why: str) -> None:
        """End a request in the scheduler, if it is live."""
        if self.scheduler.abort(handle, self.clock()) and self._trace is not None:
            self._trace.abort(handle, why)

    def _settle_events(self) -> None:
        """Count what happened, and make the outputs of what ended."""
        for event in self.scheduler.take_events():
            self._events.append(event)
            if isinstance(event, Finished):
                self._finish(event)
            else:
                self.metrics.event(event)

    def _finish(self, event: Finished) -> None:
        if self._trace is not None:
            self._trace.finish(event)
        if self.processor is None:
            self.metrics.finished(event, event.reason.value, event.num_output_tokens)
            return
        reason, num_output_tokens = self.processor.close(event)
        metrics = self.metrics.finished(event, reason, num_output_tokens)
        self.processor.finish(event, reason, metrics)

    def _count_phase(self, phase: str, start_s: float) -> None:
        self._add_phase(phase, self.clock() - start_s)

    def _add_phase(self, phase: str, seconds: float) -> None:
        self.metrics.histograms.phase_s[phase].observe(seconds)
        self._seconds[phase] = seconds

    @contextmanager
    def _isolated(self, flight: _Flight) -> Iterator[None]:
        """Note an exception with the plan it belongs to, whose requests it will end, and go on."""
        try:
            yield
        except BaseException as error:
            flight.error = error
            if not self._isolate_errors or not isinstance(error, Exception):
                raise
            logger.exception("step %d failed; its %d requests end", flight.plan.step, flight.plan.num_rows)


def _failed_result(plan: StepPlan, error: BaseException | None) -> StepResult:
    """A result that ends every request of the plan."""
    message = f"the step failed: {type(error).__name__}: {error}"
    return StepResult(
        plan.step,
        np.full((plan.num_rows, 1), -1, np.int32),
        np.zeros(plan.num_rows, np.int32),
        failed={row: message for row in range(plan.num_rows)},
        lost_plan=True,
    )
