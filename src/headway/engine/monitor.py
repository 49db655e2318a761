"""What an operator wants to see of an engine: folded step by step in its thread, copied when somebody asks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headway.core.events import Admitted, Event, Finished, Preempted, Queued
from headway.core.inspection import Inspection
from headway.core.plan import StepPlan
from headway.engine.engine import Engine
from headway.engine.loop import StepReport
from headway.engine.metrics import COMPLETE, Counters, Histograms, MemoryUse, kv_usage
from headway.engine.waits import WaitLog, Waits

NUM_STEPS = 300
"""Steps that are remembered."""

NUM_RECENT = 512
"""Observations of each latency, and starts of requests, that are remembered."""

QUANTILES = (0.5, 0.9, 0.99)


class StepRecord(NamedTuple):
    """One executed step.

    Attributes:
        step: its number.
        at_s: when its result had been taken in, on the engine's clock.
        decode_tokens, prefill_tokens: tokens of rows that wanted one token, and of the others.
        rows: requests in it.
        running, waiting: requests afterwards.
        kv_usage: share of the KV blocks held afterwards.
        step_s: seconds it took from beginning to end.
        seconds: what its parts took, by phase.
    """

    step: int
    at_s: float
    decode_tokens: int
    prefill_tokens: int
    rows: int
    running: int
    waiting: int
    kv_usage: float
    step_s: float
    seconds: Mapping[str, float]


class Setback(NamedTuple):
    """What preemptions cost a live request: tokens given up in all, and whom it last made room for."""

    num_lost_tokens: int
    by: str


@dataclass(frozen=True)
class Recent:
    """Recent observations, oldest first; latencies in seconds, as docs/metrics.md defines them.

    Attributes:
        queue_s, ttft_s: of requests that started, or got their first token.
        tpot_s, e2e_s: of requests that ended with "stop" or "length".
        reuse: int64[n, 2], tokens of the prompt and those of them found in the prefix cache, of requests that started.
    """

    queue_s: npt.NDArray[np.float64]
    ttft_s: npt.NDArray[np.float64]
    tpot_s: npt.NDArray[np.float64]
    e2e_s: npt.NDArray[np.float64]
    reuse: npt.NDArray[np.int64]


@dataclass(frozen=True)
class EngineSnapshot:
    """Everything there is to see, at one moment between two steps; nothing in it changes any more.

    Attributes:
        at_s: when, on the engine's clock.
        taken_s: when, on the heartbeat's clock.
        inspection: requests, reasons, blocks.
        memory: of the KV blocks.
        waits: since when requests wait for their reason.
        counters, histograms: since the start.
        steps: the last executed steps, oldest first.
        recent: latencies and reuse.
        setbacks: handle -> what preemptions cost, of live requests that were preempted.
        preemption_seconds: kind -> seconds that preemptions were predicted to cost, and did cost, since the start.
    """

    at_s: float
    taken_s: float
    inspection: Inspection
    memory: MemoryUse
    waits: Waits
    counters: Counters
    histograms: Histograms
    steps: tuple[StepRecord, ...]
    recent: Recent
    setbacks: Mapping[int, Setback]
    preemption_seconds: Mapping[str, tuple[float, float]]


class Monitor:
    """Watches one engine. Used in the engine's thread only.

    Args:
        engine: looked at, not driven.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._clock = engine.loop.clock
        self._waits = WaitLog(engine.scheduler.config.max_num_seqs, self._clock())
        self._steps: deque[StepRecord] = deque(maxlen=NUM_STEPS)
        self._queued: dict[int, Queued] = {}
        """handle -> arrival, of requests that never started."""
        self._prefilling: dict[int, float] = {}
        """handle -> arrival, of requests that started and have no token yet."""
        self._setbacks: dict[int, Setback] = {}
        self._reuse: deque[tuple[int, int]] = deque(maxlen=NUM_RECENT)
        self._queue_s, self._ttft_s, self._tpot_s, self._e2e_s = (deque[float](maxlen=NUM_RECENT) for _ in range(4))

    def observe(self, report: StepReport, step_s: float) -> None:
        """Take in a step that took ``step_s``. Costs time in proportion to what happened, not to the requests."""
        now = self._clock()
        for event in report.events:
            self._follow(event)
        self._waits.observe(self._engine.scheduler.step_reasons(), report.events, now)
        if report.output is not None and self._prefilling:
            self._count_first_tokens(report.output.handles, now)
        self._forget(report.events)
        for update in report.updates:
            output = update.output
            if output is not None and output.metrics is not None and output.finish_reason in COMPLETE:
                self._e2e_s.append(output.metrics.e2e_s)
                if output.metrics.tpot_s is not None:
                    self._tpot_s.append(output.metrics.tpot_s)
        if report.plan is not None:
            self._steps.append(self._record(report.plan, report.seconds, step_s, now))

    def snapshot(self, taken_s: float) -> EngineSnapshot:
        """Copy everything; ``taken_s`` is the time on the heartbeat's clock."""
        metrics = self._engine.metrics
        return EngineSnapshot(
            at_s=self._clock(),
            taken_s=taken_s,
            inspection=self._engine.scheduler.inspect(),
            memory=self._engine.memory_use(),
            waits=self._waits.copy(),
            counters=metrics.counters.copy(),
            histograms=metrics.histograms.copy(),
            steps=tuple(self._steps),
            recent=Recent(
                queue_s=np.array(self._queue_s),
                ttft_s=np.array(self._ttft_s),
                tpot_s=np.array(self._tpot_s),
                e2e_s=np.array(self._e2e_s),
                reuse=np.array(self._reuse, np.int64).reshape(-1, 2),
            ),
            setbacks=dict(self._setbacks),
            preemption_seconds={
                kind: (predicted_s, metrics.preemption_costs.real_s[kind])
                for kind, predicted_s in metrics.preemption_costs.predicted_s.items()
            },
        )

    def _follow(self, event: Event) -> None:
        if isinstance(event, Queued):
            self._queued[event.handle] = event
        elif isinstance(event, Admitted):
            queued = self._queued.pop(event.handle, None)
            if queued is not None:
                self._queue_s.append(event.now - queued.now)
                self._reuse.append((queued.num_prompt_tokens, event.num_cached_tokens))
                self._prefilling[event.handle] = queued.now
        elif isinstance(event, Preempted):
            before = self._setbacks.get(event.handle)
            lost = event.num_lost_tokens + (before.num_lost_tokens if before is not None else 0)
            self._setbacks[event.handle] = Setback(lost, event.by)

    def _forget(self, events: Iterable[Event]) -> None:
        """Let go of what has ended, which may have got its first token in the same step."""
        for event in events:
            if isinstance(event, Finished):
                self._queued.pop(event.handle, None)
                self._prefilling.pop(event.handle, None)
                self._setbacks.pop(event.handle, None)

    def _count_first_tokens(self, handles: npt.NDArray[np.int64], now: float) -> None:
        waiting = np.fromiter(self._prefilling, np.int64, len(self._prefilling))
        for handle in waiting[np.isin(waiting, handles)].tolist():
            self._ttft_s.append(now - self._prefilling.pop(handle))

    def _record(self, plan: StepPlan, seconds: Mapping[str, float], step_s: float, now: float) -> StepRecord:
        scheduler = self._engine.scheduler
        # A row that samples after one token wanted that one only: it decoded (docs/design/step.md).
        decode_tokens = int(np.count_nonzero(plan.samples & (plan.num_scheduled == 1)))
        return StepRecord(
            step=plan.step,
            at_s=now,
            decode_tokens=decode_tokens,
            prefill_tokens=plan.num_tokens - decode_tokens,
            rows=plan.num_rows,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            kv_usage=kv_usage(scheduler),
            step_s=step_s,
            seconds=seconds,
        )


def inter_token_latencies(steps: Sequence[StepRecord]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Times between tokens in the last steps, and how many rows each stands for.

    What a row that goes on decoding waits for its next token is the time from step to step.

    Returns:
        seconds float64[n] and rows float64[n].
    """
    times = np.array([record.at_s for record in steps])
    going_on = np.array([record.running for record in steps[:-1]])
    rows = np.minimum(np.array([record.decode_tokens for record in steps[1:]]), going_on).astype(np.float64)
    counts = rows > 0
    return np.diff(times)[counts], rows[counts]


def quantiles(
    values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64] | None = None
) -> tuple[float, ...] | None:
    """The smallest values that at least the shares ``QUANTILES`` of the weight do not exceed; ``None`` without any."""
    if not len(values):
        return None
    order = np.argsort(values)
    cumulative = np.cumsum(np.ones(len(values)) if weights is None else weights[order])
    places = np.searchsorted(cumulative, np.array(QUANTILES) * cumulative[-1])
    return tuple(values[order[np.minimum(places, len(values) - 1)]].tolist())
