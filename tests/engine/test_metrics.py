"""Counters tell the truth: each request once, times by definition, whatever is preempted, aborted or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headway.config import SamplingParams
from headway.core.plan import StepPlan
from headway.core.request import RequestRefused
from headway.engine.engine import Engine
from headway.engine.histogram import Histogram
from headway.engine.metrics import kv_usage, read_gauges
from headway.engine.outputs import RequestOutput
from headway.sim.fake import FakeExecutor
from tests.engine.builders import ScriptedExecutor, echo, make_engine, scripts


class StepClock:
    """Stands still but for the executor, which moves it on by one second per step."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def step(self, plan: StepPlan) -> None:
        self.now += 1.0


def timed_engine(script: Any = echo, **options: Any) -> Engine:
    """An engine whose steps take one second each."""
    clock = StepClock()
    return make_engine(ScriptedExecutor(script, during=clock.step), clock=clock, **options)


def add(engine: Engine, name: str, prompt: int = 5, **sampling: Any) -> None:
    tokens = [ord(name[0]) + place for place in range(prompt)]
    engine.add(engine.prepare(tokens, SamplingParams(ignore_eos=True, **sampling), request_id=name))


def drain(engine: Engine) -> dict[str, RequestOutput]:
    """Final outputs by request."""
    outputs = {}
    while engine.has_work:
        for update in engine.step():
            if update.output is not None:
                outputs[update.request_id] = update.output
    return outputs


def test_times_of_a_request_are_those_of_its_steps() -> None:
    engine = timed_engine(max_num_seqs=1)
    add(engine, "a", max_tokens=4)
    add(engine, "b", max_tokens=3)

    metrics = {name: output.metrics for name, output in drain(engine).items()}

    a, b = metrics["a"], metrics["b"]
    assert a is not None
    assert b is not None
    assert (a.arrival_s, a.queue_s, a.ttft_s, a.tpot_s, a.e2e_s) == (0.0, 0.0, 1.0, 1.0, 4.0)
    assert (b.arrival_s, b.queue_s, b.ttft_s, b.tpot_s, b.e2e_s) == (0.0, 4.0, 5.0, 1.0, 7.0)
    histograms = engine.metrics.histograms
    assert (histograms.itl_s.count, histograms.itl_s.mean) == (5, 1.0)
    assert (histograms.ttft_s.sum, histograms.queue_s.sum, histograms.e2e_s.sum) == (6.0, 4.0, 11.0)


def test_chunks_are_steps_that_compute_the_prompt() -> None:
    engine = timed_engine(max_num_batched_tokens=8)
    add(engine, "a", prompt=20, max_tokens=3)

    metrics = drain(engine)["a"].metrics

    assert metrics is not None
    assert (metrics.num_chunks, metrics.ttft_s, metrics.e2e_s) == (3, 3.0, 5.0)
    assert engine.metrics.counters.computed_tokens == 22
    assert engine.metrics.counters.steps == 5


def test_a_prompt_of_which_one_token_is_left_is_one_chunk() -> None:
    engine = timed_engine()
    add(engine, "a", prompt=9, max_tokens=1)
    drain(engine)
    add(engine, "a", prompt=9, max_tokens=2)

    metrics = drain(engine)["a"].metrics

    assert metrics is not None
    assert (metrics.num_cached_tokens, metrics.num_chunks) == (8, 1)


def test_first_tokens_are_counted_once_whatever_is_preempted() -> None:
    engine = make_engine(FakeExecutor(block_size=4), isolate_errors=False, num_blocks=10)
    for name in "abc":
        add(engine, name, prompt=9, max_tokens=20)

    outputs = drain(engine)

    counters, histograms = engine.metrics.counters, engine.metrics.histograms
    preemptions = [output.metrics.num_preemptions for output in outputs.values() if output.metrics is not None]
    assert sum(preemptions) == counters.preemptions["recompute", "blocks"] > 0
    assert counters.lost_tokens["blocks"] > 0
    assert (counters.requests_added, counters.requests_admitted, counters.requests_finished["length"]) == (3, 3, 3)
    assert (histograms.ttft_s.count, histograms.queue_s.count, histograms.e2e_s.count) == (3, 3, 3)
    assert histograms.itl_s.count == 57
    assert (counters.prompt_tokens, counters.cached_tokens) == (27, 0)
    assert counters.sampled_tokens == counters.generation_tokens == 60


def test_reuse_and_recovery_after_preemption_are_counted_apart() -> None:
    engine = make_engine(FakeExecutor(block_size=4), isolate_errors=False, num_blocks=10)
    for name in "abc":
        add(engine, name, prompt=9, max_tokens=20)
    drain(engine)
    recached = engine.metrics.counters.recached_tokens
    add(engine, "a", prompt=9, max_tokens=1)
    drain(engine)

    stats = engine.scheduler.kv.stats
    assert engine.metrics.counters.cached_tokens == stats.first.hit_tokens
    assert engine.metrics.counters.recached_tokens == recached == stats.resumed.hit_tokens


def test_a_refused_request_is_counted_as_that_only() -> None:
    engine = timed_engine()
    for _ in range(5):
        with pytest.raises(RequestRefused):
            engine.prepare([], request_id="a")
    add(engine, "a", max_tokens=1)
    drain(engine)

    counters = engine.metrics.counters
    assert counters.requests_refused == {"prompt": 5}
    assert (counters.requests_added, counters.requests_admitted) == (1, 1)


def test_an_aborted_request_has_no_service_times() -> None:
    engine = timed_engine()
    add(engine, "a", max_tokens=9)
    engine.step()
    engine.abort(1)
    output = drain(engine)["a"]

    assert output.metrics is not None
    assert (output.metrics.ttft_s, output.metrics.num_output_tokens) == (1.0, 1)
    assert engine.metrics.counters.requests_finished["abort"] == 1
    assert (engine.metrics.histograms.ttft_s.count, engine.metrics.histograms.e2e_s.count) == (1, 0)


def test_a_stop_string_is_a_stop_and_cuts_the_usage() -> None:
    engine = timed_engine(scripts({"a": b"abXYcd"}))
    engine.add(engine.prepare("p", SamplingParams(stop=("XY",)), request_id="a"))

    output = drain(engine)["a"]

    counters = engine.metrics.counters
    assert (counters.requests_finished["stop"], counters.requests_finished["abort"]) == (1, 0)
    assert output.metrics is not None
    assert (output.metrics.num_output_tokens, counters.generation_tokens, counters.sampled_tokens) == (2, 2, 4)
    assert engine.metrics.histograms.output_tokens.sum == 2


def test_gauges_tell_what_is_held_and_who_waits_for_what() -> None:
    engine = timed_engine(max_num_seqs=2, num_blocks=20)
    for name in "abcd":
        add(engine, name, max_tokens=5)
    engine.step()

    gauges = read_gauges(engine.scheduler)

    assert (gauges.running, gauges.waiting) == (2, 2)
    assert gauges.unserved == {"slots_full": 1, "queue_position": 1}
    assert gauges.kv_usage == pytest.approx(4 / 20)
    drain(engine)
    assert kv_usage(engine.scheduler) == 0.0


def test_the_parts_of_every_step_are_timed() -> None:
    engine = timed_engine()
    add(engine, "a", max_tokens=3)
    drain(engine)

    phases = engine.metrics.histograms.phase_s
    assert {name: phases[name].count for name in ("schedule", "update", "output")} == {
        "schedule": 3,
        "update": 3,
        "output": 3,
    }


def test_a_histogram_counts_into_the_right_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    histogram.observe_many(np.array([2.0, 3.0]))

    assert histogram.counts.tolist() == [2, 2, 2]
    assert (histogram.count, histogram.sum, histogram.mean) == (6, 17.0, pytest.approx(17 / 6))
    assert Histogram((1.0,)).mean == 0.0
