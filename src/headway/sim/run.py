"""Runs a workload through the scheduler in virtual time and reports what came of it.

It is the scheduler of the engine, not a model of it: only the executor is replaced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

import numpy as np
import numpy.typing as npt

from headway.config import CacheConfig, SchedulerConfig
from headway.core.events import Admitted, Event, Finished, Preempted, StepOutput
from headway.core.plan import Int64, StepPlan
from headway.core.request import RequestRefused
from headway.core.rest import RestRule
from headway.core.scheduler import Scheduler
from headway.sim.timed import LatencyModel, TimedExecutor, VirtualClock
from headway.sim.workload import Arrival

Float64 = npt.NDArray[np.float64]

MAX_POLLS = 60_000
"""A hold of the policy that does not say how long it lasts may last for so many polls, ten minutes in all."""


class SimulationStalled(RuntimeError):
    """Requests are unfinished and no step changes anything: a bug of the scheduler."""


@dataclass
class SimReport:
    """What came of a simulation. Times in seconds; NaN where something did not happen.

    Attributes:
        arrival_s, admitted_s, first_s, last_s, end_s: float64[n], when each request came, got a slot, got its first
            and its last token, and ended.
        num_output_tokens: int64[n], delivered.
        finished: ends by reason; "refused" for those that could never be served.
        makespan_s: from 0 to the last end.
        busy_s: time spent on steps.
        num_steps, computed_tokens: steps with rows, and tokens they computed.
        preemptions: by kind.
        cached_tokens: prompt tokens found in the prefix cache at first admission.
        recomputed_tokens, restored_tokens: computed a second time, and copied back from the host.
        swapped_out_blocks, swapped_in_blocks: blocks copied.
        peak_blocks: the most KV blocks that requests held at a time.
    """

    arrival_s: Float64
    admitted_s: Float64
    first_s: Float64
    last_s: Float64
    end_s: Float64
    num_output_tokens: Int64
    finished: dict[str, int] = field(default_factory=dict)
    makespan_s: float = 0.0
    busy_s: float = 0.0
    num_steps: int = 0
    computed_tokens: int = 0
    preemptions: dict[str, int] = field(default_factory=lambda: {"recompute": 0, "swap": 0})
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    restored_tokens: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    peak_blocks: int = 0

    @staticmethod
    def empty(count: int) -> SimReport:
        """A report of ``count`` requests of which nothing is known."""
        arrival_s, admitted_s, first_s, last_s, end_s = (np.full(count, np.nan) for _ in range(5))
        return SimReport(arrival_s, admitted_s, first_s, last_s, end_s, np.zeros(count, np.int64))

    @property
    def throughput_tok_s(self) -> float:
        """Output tokens per second, from the beginning to the last end."""
        return float(self.num_output_tokens.sum()) / self.makespan_s if self.makespan_s else 0.0

    @property
    def ttft_s(self) -> Float64:
        """float64[n], from arrival to the first token."""
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> Float64:
        """float64[n], mean time per token after the first; NaN where there is no second."""
        later = self.num_output_tokens - 1
        return (self.last_s - self.first_s) / np.where(later > 0, later, np.nan)

    @property
    def e2e_s(self) -> Float64:
        """float64[n], from arrival to the last token."""
        return self.last_s - self.arrival_s


def percentile(values: Float64, percent: float) -> float:
    """Percentile of what is there; NaN if nothing is."""
    there = values[~np.isnan(values)]
    return float(np.percentile(there, percent)) if len(there) else float("nan")


def simulate(
    work: Iterable[Arrival],
    config: SchedulerConfig,
    cache: CacheConfig,
    latency: LatencyModel,
    *,
    depth: int = 1,
    vocab_size: int = 32000,
) -> SimReport:
    """Run all requests to their end.

    Args:
        work: what arrives and when, in any order.
        config, cache: the scheduler's options.
        latency: how long steps take.
        depth: plans in flight at most.
        vocab_size: tokens are below this.

    Raises:
        SimulationStalled: nothing moves any more.
    """
    return _Simulation(sorted(work, key=lambda each: each.arrival_s), config, cache, latency, depth, vocab_size).run()


class _Simulation:
    def __init__(
        self,
        work: list[Arrival],
        config: SchedulerConfig,
        cache: CacheConfig,
        latency: LatencyModel,
        depth: int,
        vocab_size: int,
    ) -> None:
        self._work = deque(enumerate(work))
        self._clock = VirtualClock()
        self._executor = TimedExecutor(latency, self._clock, vocab_size=vocab_size)
        self._scheduler = Scheduler(config, cache)
        self._rest = RestRule(self._scheduler, max_polls=MAX_POLLS)
        self._depth = depth
        self._vocab_size = vocab_size
        self._plans: deque[StepPlan] = deque()
        self._index_of: dict[int, int] = {}
        """handle -> place in the workload."""
        self._report = SimReport.empty(len(work))

    def run(self) -> SimReport:
        while self._work or self._scheduler.has_unfinished:
            self._take_arrivals()
            self._launch()
            events = self._scheduler.take_events()
            self._fold(events)
            moved = bool(self._plans or events)
            if self._plans:
                self._land()
            self._rest_until(self._rest.observe(self._clock(), moved=moved))
        self._report.makespan_s, self._report.busy_s = self._clock(), self._executor.busy_s
        return self._report

    def _rest_until(self, time_s: float) -> None:
        """Let the time in which nothing can change pass at once."""
        if not self._scheduler.has_unfinished:
            time_s = inf
        if self._work:
            time_s = min(time_s, self._work[0][1].arrival_s)
        if time_s < inf:
            self._clock.advance_to(time_s)
        elif self._scheduler.has_unfinished:
            raise SimulationStalled(f"no request moves; they wait for {self._scheduler.wait_reasons()}")

    def _take_arrivals(self) -> None:
        report = self._report
        while self._work and self._work[0][1].arrival_s <= self._clock():
            index, arrival = self._work.popleft()
            report.arrival_s[index] = arrival.arrival_s
            request = arrival.request(f"r{index}", self._vocab_size)
            try:
                self._scheduler.add(request, arrival.arrival_s)
            except RequestRefused:
                report.finished["refused"] = report.finished.get("refused", 0) + 1
                continue
            self._index_of[request.handle] = index

    def _launch(self) -> None:
        while len(self._plans) < self._depth and self._scheduler.has_unfinished:
            plan = self._scheduler.schedule(self._clock())
            if not plan.num_rows:
                return
            self._executor.submit(plan)
            self._plans.append(plan)
            report = self._report
            report.num_steps += 1
            report.computed_tokens += plan.num_tokens
            report.swapped_out_blocks += len(plan.swap_out)
            report.swapped_in_blocks += len(plan.swap_in)
            pool = self._scheduler.kv.pool
            report.peak_blocks = max(report.peak_blocks, pool.num_blocks - pool.num_free)

    def _land(self) -> None:
        plan, result = self._plans.popleft(), self._executor.collect()
        output = self._scheduler.update(plan, result, self._clock())
        self._count_tokens(output)
        self._fold(self._scheduler.take_events())

    def _count_tokens(self, output: StepOutput) -> None:
        report, now = self._report, self._clock()
        places = [self._index_of[handle] for handle in output.handles.tolist()]
        first = np.isnan(report.first_s[places])
        report.first_s[places] = np.where(first, now, report.first_s[places])
        report.last_s[places] = now
        report.num_output_tokens[places] += output.counts

    def _fold(self, events: list[Event]) -> None:
        report = self._report
        for event in events:
            if isinstance(event, Preempted):
                report.preemptions[event.kind] += 1
            elif isinstance(event, Admitted):
                report.recomputed_tokens += event.num_recomputed_tokens
                report.restored_tokens += event.num_restored_tokens
                if not event.resumed:
                    report.admitted_s[self._index_of[event.handle]] = event.now
                    report.cached_tokens += event.num_cached_tokens
            elif isinstance(event, Finished):
                report.end_s[self._index_of.pop(event.handle)] = event.now
                report.finished[event.reason.value] = report.finished.get(event.reason.value, 0) + 1
