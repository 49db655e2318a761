"""Metrics for Prometheus, under the names that vLLM's have, with the prefix ``headway:``. docs/metrics.md has them all.

Nothing is counted here: everything is read from a snapshot of the engine and from the server's own counts, so that one
answer is one moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headway.engine.histogram import Histogram
from headway.engine.monitor import EngineSnapshot
from headway.server.service import Service

PREFIX = "headway:"
LABELS = ("model_name", "engine")
ENGINE = "0"
"""One process has one engine; the label is there for dashboards that add engines up."""

STATUSES = ("ok", "draining", "frozen", "dead")
"""States of the server, as in ``server/health.py``."""

_PROCESS = ProcessCollector(registry=None)


Value = TypeVar("Value")
Labelled = Iterable[tuple[tuple[str, ...], Value]]
"""Values with the labels they have besides those of the server."""


def _each(values: Mapping[str, Value]) -> Labelled[Value]:
    """Values with one label."""
    return (((label,), value) for label, value in values.items())


@dataclass(frozen=True)
class _Families:
    """Makes families whose samples all have the server's labels.

    Args:
        values: of ``LABELS``.
    """

    values: tuple[str, ...]

    def gauge(self, name: str, what: str, value: float) -> Metric:
        """One number."""
        return self.gauges(name, what, (), [((), value)])

    def gauges(self, name: str, what: str, labels: Sequence[str], values: Labelled[float]) -> Metric:
        """A number for each combination of labels."""
        family = GaugeMetricFamily(PREFIX + name, what, labels=(*LABELS, *labels))
        for more, value in values:
            family.add_metric((*self.values, *more), value)
        return family

    def counter(self, name: str, what: str, value: float) -> Metric:
        """One number that only rises; its sample's name ends with ``_total``."""
        return self.counters(name, what, (), [((), value)])

    def counters(self, name: str, what: str, labels: Sequence[str], values: Labelled[float]) -> Metric:
        """The same for each combination of labels."""
        family = CounterMetricFamily(PREFIX + name, what, labels=(*LABELS, *labels))
        for more, value in values:
            family.add_metric((*self.values, *more), value)
        return family

    def histogram(self, name: str, what: str, histogram: Histogram) -> Metric:
        """A distribution."""
        return self.histograms(name, what, (), [((), histogram)])

    def histograms(self, name: str, what: str, labels: Sequence[str], values: Labelled[Histogram]) -> Metric:
        """A distribution for each combination of labels."""
        family = HistogramMetricFamily(PREFIX + name, what, labels=(*LABELS, *labels))
        for more, histogram in values:
            below = histogram.counts.cumsum().tolist()
            bounds = (*(str(bound) for bound in histogram.bounds), "+Inf")
            family.add_metric((*self.values, *more), list(zip(bounds, below, strict=True)), histogram.sum)
        return family


class EngineCollector(Collector):
    """One moment of a server, to be written out once.

    Args:
        snapshot: of the engine.
        service: the server's own counts.
    """

    def __init__(self, snapshot: EngineSnapshot, service: Service) -> None:
        self._snapshot = snapshot
        self._service = service
        self._families = _Families((service.models[0], ENGINE))

    def collect(self) -> Iterable[Metric]:
        """All families."""
        yield from self._state()
        yield from self._memory()
        yield from self._requests()
        yield from self._tokens()
        yield from self._latencies()
        yield from self._lengths()
        yield from self._steps()
        yield from self._health()
        yield from _PROCESS.collect()

    def _state(self) -> Iterator[Metric]:
        make, seen, admission = self._families, self._snapshot.inspection, self._service.admission
        waiting = {code.value: count for code, count in seen.waiting_counts().items()}
        unserved = {code.value: count for code, count in seen.row_counts().items()}
        yield make.gauge("num_requests_running", "Requests in a slot.", len(seen.rows))
        yield make.gauge("num_requests_waiting", "Unfinished requests without a slot.", len(seen.waiting))
        yield make.gauge("num_requests_swapped", "Those of them whose KV is on the host.", seen.num_swapped)
        yield make.gauges(
            "num_requests_waiting_by_reason", "Requests without a slot, by why they wait.", ("reason",), _each(waiting)
        )
        yield make.gauges(
            "num_requests_unserved_by_reason",
            "Requests in a slot that got no token in the last step, by why.",
            ("reason",),
            _each(unserved),
        )
        yield make.gauge("admission_requests", "Unfinished requests that admission counts.", admission.num_requests)
        yield make.gauge("admission_prompt_tokens", "Prompt tokens in prefill that it counts.", admission.num_tokens)
        limits = {"requests": admission.max_requests, "prompt_tokens": admission.max_tokens}
        known_limits = {what: limit for what, limit in limits.items() if limit is not None}
        yield make.gauges(
            "admission_limit",
            "What admission allows, if it has a limit.",
            ("what",),
            _each(known_limits),
        )

    def _memory(self) -> Iterator[Metric]:
        make, pool = self._families, self._snapshot.inspection.pool
        scheduler = self._service.engine.engine.scheduler
        held = pool.num_blocks - pool.num_free
        yield make.gauge(
            "kv_cache_usage_perc", "Share of the KV blocks that requests hold, 0 to 1.", held / pool.num_blocks
        )
        blocks = {"held": held, "cached": pool.num_free_cached, "free": pool.num_free - pool.num_free_cached}
        yield make.gauges(
            "kv_cache_blocks",
            "KV blocks: held by requests, free with content that a prefix can find, free without.",
            ("state",),
            _each(blocks),
        )
        host = {"held": pool.num_host_blocks - pool.num_host_free, "free": pool.num_host_free}
        yield make.gauges("host_cache_blocks", "KV blocks in host memory.", ("state",), _each(host))
        use = self._snapshot.memory
        reserved = {"device": use.kv_reserved_bytes, "host": use.host_kv_reserved_bytes}
        resident = {"device": use.kv_resident_bytes, "host": use.host_kv_resident_bytes}
        yield make.gauges("kv_reserved_bytes", "Memory that KV blocks may take.", ("tier",), _each(reserved))
        yield make.gauges("kv_resident_bytes", "Memory that they take now.", ("tier",), _each(resident))
        info = {
            "block_size": scheduler.cache.block_size,
            "num_blocks": scheduler.cache.num_blocks,
            "num_groups": scheduler.cache.num_groups,
            "enable_prefix_caching": scheduler.cache.enable_prefix_caching,
            "match_unit_tokens": scheduler.cache.block_size,
        }
        yield make.gauges(
            "cache_config_info",
            "Size and shape of the KV memory; prefixes are found in whole units of match_unit_tokens.",
            tuple(info),
            [(tuple(str(value) for value in info.values()), 1.0)],
        )
        yield make.counter("kv_cache_evictions", "Cached blocks taken for other content.", pool.stats.evicted)
        first, resumed = pool.prefix.first, pool.prefix.resumed
        yield make.counter(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache, once per request.", first.query_tokens
        )
        yield make.counter("prefix_cache_hits", "Those of them that were found there.", first.hit_tokens)
        yield make.counter(
            "resumed_prefix_cache_hits", "Tokens that preempted requests found again of their own.", resumed.hit_tokens
        )

    def _requests(self) -> Iterator[Metric]:
        make, counters = self._families, self._snapshot.counters
        yield make.counters(
            "request_success",
            "Requests that ended, by how their client saw it.",
            ("finished_reason",),
            _each(counters.requests_finished),
        )
        yield make.counters(
            "admission_rejections",
            "Calls turned away with 503, by the limit that was reached.",
            ("reason",),
            _each(self._service.admission.turned_away),
        )
        yield make.counters(
            "requests_refused",
            "Requests that can never be served, by the field to blame.",
            ("field",),
            _each(counters.requests_refused),
        )
        yield make.counters("num_preemptions", "Preemptions.", ("kind", "cause"), counters.preemptions.items())
        yield make.counters(
            "preemption_lost_tokens",
            "Computed tokens given up by preemptions.",
            ("cause",),
            _each(counters.lost_tokens),
        )
        yield make.counter("recomputed_tokens", "Tokens computed again after a preemption.", counters.recomputed_tokens)
        yield make.counter("restored_tokens", "Tokens of preempted requests copied back.", counters.restored_tokens)
        yield make.counter("swapped_out_blocks", "KV blocks copied to the host.", counters.swapped_out_blocks)
        yield make.counter("swapped_in_blocks", "KV blocks copied back.", counters.swapped_in_blocks)
        seconds = self._snapshot.preemption_seconds
        yield make.counters(
            "preemption_predicted_seconds",
            "What preemptions were predicted to cost, of requests that came back.",
            ("kind",),
            _each({kind: predicted for kind, (predicted, _) in seconds.items()}),
        )
        yield make.counters(
            "preemption_real_seconds",
            "What they did cost.",
            ("kind",),
            _each({kind: real for kind, (_, real) in seconds.items()}),
        )

    def _tokens(self) -> Iterator[Metric]:
        make, counters = self._families, self._snapshot.counters
        cached, host = counters.cached_tokens, counters.host_cached_tokens
        sources = {"local_compute": counters.prompt_tokens - cached - host, "local_cache_hit": cached, "host": host}
        yield make.counter("prompt_tokens", "Prompt tokens of requests that started.", counters.prompt_tokens)
        yield make.counters(
            "prompt_tokens_by_source",
            "The same by where their KV came from.",
            ("source",),
            _each(sources),
        )
        yield make.counter("prompt_tokens_cached", "Those of them found in a cache.", cached + host)
        yield make.counter("generation_tokens", "Tokens delivered to clients.", counters.generation_tokens)

    def _latencies(self) -> Iterator[Metric]:
        make, found = self._families, self._snapshot.histograms
        yield make.histogram("request_queue_time_seconds", "From arrival to the first slot.", found.queue_s)
        yield make.histogram("time_to_first_token_seconds", "From arrival to the first token.", found.ttft_s)
        yield make.histogram("inter_token_latency_seconds", "From one token to the next.", found.itl_s)
        yield make.histogram(
            "request_time_per_output_token_seconds", "Mean of a request's times between tokens.", found.tpot_s
        )
        yield make.histogram("request_prefill_time_seconds", "From the first slot to the first token.", found.prefill_s)
        yield make.histogram("request_decode_time_seconds", "From the first token to the last.", found.decode_s)
        yield make.histogram(
            "request_inference_time_seconds", "From the first slot to the last token.", found.inference_s
        )
        yield make.histogram("e2e_request_latency_seconds", "From arrival to the end.", found.e2e_s)

    def _lengths(self) -> Iterator[Metric]:
        make, found = self._families, self._snapshot.histograms
        yield make.histogram("request_prompt_tokens", "Tokens of a prompt.", found.prompt_tokens)
        yield make.histogram(
            "request_prefill_kv_computed_tokens", "Those of them not found in a cache.", found.computed_prompt_tokens
        )
        yield make.histogram("request_generation_tokens", "Tokens of an output.", found.output_tokens)
        yield make.histogram("request_params_max_tokens", "max_tokens of requests that have it.", found.max_tokens)
        yield make.histogram("request_params_n", "Choices asked for in a call.", self._service.asked_n)
        yield make.histogram("request_num_preemptions", "How often a request was preempted.", found.preemptions)

    def _steps(self) -> Iterator[Metric]:
        make, counters, found = self._families, self._snapshot.counters, self._snapshot.histograms
        yield make.counter("steps", "Steps executed.", counters.steps)
        yield make.counter("steps_failed", "Those of them that failed.", counters.steps_failed)
        yield make.counter("computed_tokens", "Tokens that steps computed.", counters.computed_tokens)
        yield make.histogram("iteration_tokens_total", "Tokens computed in a step.", found.step_tokens)
        yield make.histograms(
            "step_phase_seconds",
            "Time of the parts of a step.",
            ("phase",),
            _each(found.phase_s),
        )

    def _health(self) -> Iterator[Metric]:
        make, service = self._families, self._service
        health = service.health()
        yield make.gauges(
            "engine_state",
            "1 for the state that the server is in.",
            ("state",),
            _each({status: int(status == health.status) for status in STATUSES}),
        )
        yield make.gauge(
            "last_step_age_seconds", "Since the last step ended.", health.step_age_s if health.step_age_s else 0.0
        )
        yield make.gauge(
            "snapshot_age_seconds",
            "How old these numbers are: more than a second means that the engine does not answer.",
            max(0.0, service.engine.now() - self._snapshot.taken_s),
        )
        yield make.gauge("open_calls", "Calls of generation endpoints that have not ended.", len(service.calls))
        yield make.gauge("event_loop_tasks", "Tasks of the server's event loop.", len(asyncio.all_tasks()))


def exposition(snapshot: EngineSnapshot, service: Service) -> bytes:
    """All metrics as text for Prometheus."""
    text: bytes = generate_latest(EngineCollector(snapshot, service))
    return text
