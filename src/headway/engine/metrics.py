"""Counters and histograms, folded from lifecycle events and step outputs in the order in which they happened.

docs/metrics.md defines every number with a symbol. Rule: each request is counted once per counter, whatever happens
to it; what was done again after a preemption is counted apart.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from math import isnan, nan

import numpy as np
import numpy.typing as npt

from headway.core.events import Admitted, Event, Finished, Preempted, Queued, StepOutput
from headway.core.plan import Int32, StepPlan
from headway.core.request import FinishReason, Request
from headway.core.scheduler import Scheduler
from headway.engine.histogram import FEW, PHASE_SECONDS, REQUEST_SECONDS, TOKENS, Histogram
from headway.engine.outputs import RequestMetrics
from headway.engine.preemption_costs import PreemptionCosts

PHASES = ("schedule", "copy", "build", "forward", "sample", "collect", "update", "output")
"""Parts of a step: the scheduler's, the executor's five, the scheduler's again, the text's."""

CAUSES = ("blocks", "displaced")
PREEMPTIONS = tuple((kind, cause) for kind in ("recompute", "swap") for cause in CAUSES)
"""Kinds and causes of preemptions, as in ``core/events.py``."""

COMPLETE = (FinishReason.STOP.value, FinishReason.LENGTH.value)
"""Ends whose times say something about the service; an abort says something about the client."""


@dataclass
class Counters:
    """Numbers that only rise (docs/metrics.md)."""

    requests_added: int = 0
    requests_refused: dict[str, int] = field(default_factory=dict)
    """By the offending field."""
    requests_admitted: int = 0
    requests_finished: dict[str, int] = field(default_factory=lambda: {reason.value: 0 for reason in FinishReason})
    prompt_tokens: int = 0
    cached_tokens: int = 0
    recached_tokens: int = 0
    sampled_tokens: int = 0
    generation_tokens: int = 0
    preemptions: dict[tuple[str, str], int] = field(default_factory=lambda: dict.fromkeys(PREEMPTIONS, 0))
    """By kind and cause."""
    lost_tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    """By cause."""
    recomputed_tokens: int = 0
    restored_tokens: int = 0
    host_cached_tokens: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    steps: int = 0
    steps_failed: int = 0
    computed_tokens: int = 0

    def copy(self) -> Counters:
        """A copy that stays as it is."""
        copied = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict):
                setattr(copied, name, dict(value))
        return copied


@dataclass
class Histograms:
    """Distributions (docs/metrics.md)."""

    queue_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS))
    ttft_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS))
    itl_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS))
    tpot_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS))
    e2e_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS))
    prefill_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS))
    decode_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS))
    inference_s: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS))
    prompt_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    computed_prompt_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    output_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    max_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    preemptions: Histogram = field(default_factory=lambda: Histogram(FEW))
    step_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    phase_s: dict[str, Histogram] = field(default_factory=lambda: {phase: Histogram(PHASE_SECONDS) for phase in PHASES})

    def copy(self) -> Histograms:
        """A copy that stays as it is."""
        plain = {name: value.copy() for name, value in vars(self).items() if isinstance(value, Histogram)}
        return Histograms(**plain, phase_s={phase: each.copy() for phase, each in self.phase_s.items()})


@dataclass(frozen=True)
class Gauges:
    """The state at one moment.

    Attributes:
        running, waiting: requests in a slot, and live requests without one.
        swapped: those of the waiting whose KV is on the host.
        kv_usage: share of the KV blocks that requests hold, 0 to 1; cached blocks that nobody holds are free.
        host_kv_usage: the same of the host's KV blocks; 0 without any.
        unserved: live requests that got no tokens in the last step, by reason.
    """

    running: int
    waiting: int
    swapped: int
    kv_usage: float
    host_kv_usage: float
    unserved: dict[str, int]


@dataclass(frozen=True)
class MemoryUse:
    """Memory of the KV blocks, in bytes; all 0 for an engine that computes nothing.

    Attributes:
        kv_reserved_bytes, kv_resident_bytes: of the device's blocks, what they may take and what they take now.
        host_kv_reserved_bytes, host_kv_resident_bytes: the same of the host's blocks.
    """

    kv_reserved_bytes: int = 0
    kv_resident_bytes: int = 0
    host_kv_reserved_bytes: int = 0
    host_kv_resident_bytes: int = 0


def read_gauges(scheduler: Scheduler) -> Gauges:
    """Read the state. Costs time in proportion to the live requests."""
    unserved: dict[str, int] = {}
    for reason in scheduler.wait_reasons().values():
        unserved[reason.code.value] = unserved.get(reason.code.value, 0) + 1
    return Gauges(
        running=scheduler.num_running,
        waiting=scheduler.num_waiting,
        swapped=scheduler.num_swapped,
        kv_usage=kv_usage(scheduler),
        host_kv_usage=host_kv_usage(scheduler),
        unserved=unserved,
    )


def kv_usage(scheduler: Scheduler) -> float:
    """Share of the KV blocks that requests hold."""
    return 1.0 - scheduler.kv.pool.num_free / scheduler.cache.num_blocks


def host_kv_usage(scheduler: Scheduler) -> float:
    """Share of the host's KV blocks that swapped requests hold; 0 without any."""
    host = scheduler.kv.host
    return 1.0 - host.pool.num_free / host.pool.num_blocks if host is not None else 0.0


@dataclass
class _Life:
    """Times of one live request; those in ``_Rows`` are newer while it is in a slot."""

    arrival_s: float
    num_prompt_tokens: int
    admitted_s: float = nan
    first_s: float = nan
    last_s: float = nan
    num_tokens: int = 0
    num_chunks: int = 0
    num_cached_tokens: int = 0
    slot: int = -1


class _Rows:
    """The same as columns, by slot, so that a step is folded without a look at each request."""

    def __init__(self) -> None:
        self.arrival_s: npt.NDArray[np.float64] = np.zeros(0)
        self.admitted_s: npt.NDArray[np.float64] = np.zeros(0)
        self.first_s: npt.NDArray[np.float64] = np.zeros(0)
        self.last_s: npt.NDArray[np.float64] = np.zeros(0)
        self.num_tokens: Int32 = np.zeros(0, np.int32)
        self.num_chunks: Int32 = np.zeros(0, np.int32)
        self.num_known: Int32 = np.zeros(0, np.int32)
        """Tokens known at admission: computing one of those is a chunk."""

    def enter(self, slot: int, life: _Life, num_known: int) -> None:
        if slot >= len(self.arrival_s):
            for name, column in vars(self).items():
                setattr(self, name, np.resize(column, 2 * slot + 16))
        life.slot = slot
        self.arrival_s[slot] = life.arrival_s
        self.admitted_s[slot] = life.admitted_s
        self.first_s[slot] = life.first_s
        self.last_s[slot] = life.last_s
        self.num_tokens[slot] = life.num_tokens
        self.num_chunks[slot] = life.num_chunks
        self.num_known[slot] = num_known

    def leave(self, life: _Life) -> None:
        slot = life.slot
        if slot < 0:
            return
        life.slot = -1
        life.first_s, life.last_s = float(self.first_s[slot]), float(self.last_s[slot])
        life.num_tokens, life.num_chunks = int(self.num_tokens[slot]), int(self.num_chunks[slot])


class EngineMetrics:
    """Everything counted about one engine.

    Protocol, in the order in which things happen: :meth:`event` for every event but ``Finished``, :meth:`output`
    for every ``update``, then :meth:`finished` for the requests that ended in it.
    """

    def __init__(self) -> None:
        self.counters = Counters()
        self.histograms = Histograms()
        self.preemption_costs = PreemptionCosts()
        self._lives: dict[int, _Life] = {}
        self._rows = _Rows()

    def refused(self, field: str) -> None:
        """A request was refused because of this field."""
        refused = self.counters.requests_refused
        refused[field] = refused.get(field, 0) + 1

    def added(self, request: Request) -> None:
        """A request was entered."""
        if request.sampling.max_tokens is not None:
            self.histograms.max_tokens.observe(request.sampling.max_tokens)

    def event(self, event: Event) -> None:
        """Fold an event other than ``Finished``."""
        counters = self.counters
        if isinstance(event, Queued):
            counters.requests_added += 1
            self.histograms.prompt_tokens.observe(event.num_prompt_tokens)
            self._lives[event.handle] = _Life(event.now, event.num_prompt_tokens)
        elif isinstance(event, Admitted):
            self._admitted(event)
        elif isinstance(event, Preempted):
            counters.preemptions[event.kind, event.cause] += 1
            counters.lost_tokens[event.cause] += event.num_lost_tokens
            self.preemption_costs.preempted(event)
            self._rows.leave(self._lives[event.handle])

    def _admitted(self, event: Admitted) -> None:
        life = self._lives[event.handle]
        self.preemption_costs.admitted(event)
        self.counters.recomputed_tokens += event.num_recomputed_tokens
        if event.resumed:
            self.counters.recached_tokens += event.num_cached_tokens
            self.counters.restored_tokens += event.num_restored_tokens
        else:
            self.counters.host_cached_tokens += event.num_restored_tokens
            life.admitted_s = event.now
            life.num_cached_tokens = event.num_cached_tokens
            self.histograms.queue_s.observe(event.now - life.arrival_s)
            reused = event.num_cached_tokens + event.num_restored_tokens
            self.histograms.computed_prompt_tokens.observe(life.num_prompt_tokens - reused)
            self.counters.requests_admitted += 1
            self.counters.prompt_tokens += life.num_prompt_tokens
            self.counters.cached_tokens += event.num_cached_tokens
        self._rows.enter(event.slot, life, life.num_prompt_tokens + life.num_tokens)

    def output(self, plan: StepPlan, output: StepOutput, now: float) -> None:
        """Fold what one step computed and delivered at ``now``."""
        rows, counters = self._rows, self.counters
        counters.steps += 1
        counters.computed_tokens += plan.num_tokens
        counters.swapped_out_blocks += len(plan.swap_out)
        counters.swapped_in_blocks += len(plan.swap_in)
        self.histograms.step_tokens.observe(plan.num_tokens)
        rows.num_chunks[plan.slots[plan.starts < rows.num_known[plan.slots]]] += 1
        slots = plan.slots[output.rows]
        if not len(slots):
            return
        counters.sampled_tokens += int(output.counts.sum())
        is_first = np.isnan(rows.first_s[slots])
        first, later = slots[is_first], slots[~is_first]
        if len(first):
            rows.first_s[first] = now
            self.histograms.ttft_s.observe_many(now - rows.arrival_s[first])
            self.histograms.prefill_s.observe_many(now - rows.admitted_s[first])
        if len(later):
            self.histograms.itl_s.observe_many(now - rows.last_s[later])
        rows.last_s[slots] = now
        rows.num_tokens[slots] += output.counts

    def finished(self, event: Finished, reason: str, num_output_tokens: int) -> RequestMetrics:
        """Fold an end as the client sees it.

        Args:
            event: the scheduler's word.
            reason: why it ended for the client: a stop string ends a request that the scheduler saw aborted.
            num_output_tokens: tokens delivered to the client.
        """
        life = self._lives.pop(event.handle)
        self._rows.leave(life)
        self.preemption_costs.ended(event.handle)
        self.counters.requests_finished[reason] += 1
        metrics = RequestMetrics(
            arrival_s=life.arrival_s,
            queue_s=_elapsed(life.arrival_s, life.admitted_s),
            ttft_s=_elapsed(life.arrival_s, life.first_s),
            tpot_s=(life.last_s - life.first_s) / (life.num_tokens - 1) if life.num_tokens > 1 else None,
            e2e_s=event.now - life.arrival_s,
            num_prompt_tokens=event.num_prompt_tokens,
            num_output_tokens=num_output_tokens,
            num_cached_tokens=life.num_cached_tokens,
            num_chunks=life.num_chunks,
            num_preemptions=event.num_preemptions,
        )
        if reason in COMPLETE:
            self.histograms.e2e_s.observe(metrics.e2e_s)
            if life.num_tokens:
                self.histograms.inference_s.observe(life.last_s - life.admitted_s)
                self.histograms.decode_s.observe(life.last_s - life.first_s)
            self.histograms.output_tokens.observe(num_output_tokens)
            self.histograms.preemptions.observe(event.num_preemptions)
            if metrics.tpot_s is not None:
                self.histograms.tpot_s.observe(metrics.tpot_s)
        return metrics


def _elapsed(start_s: float, end_s: float) -> float | None:
    return None if isnan(end_s) else end_s - start_s
