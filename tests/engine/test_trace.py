"""The step trace: the same run writes the same bytes, and what is in it suffices to make every decision again."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.config import CacheConfig, SamplingParams, SchedulerConfig
from headway.core.plan import StepPlan
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from headway.engine.engine import Engine
from headway.engine.trace import TraceError, TraceHeader, TraceReader, TraceWriter
from headway.engine.trace_records import (
    plan_from_json,
    plan_to_json,
    result_from_json,
    result_to_json,
    sampling_from_json,
    sampling_to_json,
)
from headway.sim.fake import FakeExecutor
from tests.engine.builders import EOS, ScriptedExecutor, echo, make_engine, make_scheduler, scripts

TIGHT = {"num_blocks": 14, "max_num_seqs": 4, "max_num_batched_tokens": 12, "scheduling_policy": "priority"}


def header(**overrides: Any) -> TraceHeader:
    scheduler = make_scheduler(**overrides)
    return TraceHeader("0.0", scheduler.config, scheduler.cache, {"seed": 7})


def run(engine: Engine) -> None:
    """Requests of all kinds: shared beginnings, priorities, a stop string, an abort, preemptions."""
    for number in range(8):
        sampling = SamplingParams(max_tokens=14, ignore_eos=number % 2 == 0, stop=("\x01",) if number == 3 else ())
        prompt = [number if place > 8 else place for place in range(12 + number % 3)]
        engine.add(engine.prepare(prompt, sampling, request_id=f"r{number}", priority=-number % 3))
    step = 0
    while engine.has_work:
        step += 1
        if step == 5:
            engine.loop.abort("r6")
        engine.step()


def traced(**options: Any) -> str:
    """The trace of a run under memory pressure."""
    text = io.StringIO()
    writer = TraceWriter(text, header(**TIGHT), **options)
    run(make_engine(FakeExecutor(block_size=4, vocab_size=256), trace=writer, isolate_errors=False, **TIGHT))
    writer.flush()
    return text.getvalue()


def read(text: str) -> list[dict[str, Any]]:
    return list(TraceReader(io.StringIO(text)))


def test_two_equal_runs_write_the_same_bytes() -> None:
    text = traced()

    assert text == traced()
    kinds = [line["kind"] for line in read(text)]
    assert {"add", "abort", "plan", "result", "finish"} == set(kinds)


def test_what_is_kept_back_is_written_as_it_was() -> None:
    assert traced(flush_every=1) == traced()


def test_times_are_written_only_if_asked_for() -> None:
    lines = read(traced(timings=True))

    timed = [line for line in lines if line["kind"] == "t"]
    assert len(timed) == sum(line["kind"] == "result" for line in lines)
    assert {"now", "schedule", "update", "output"} <= set(timed[0])
    assert [line for line in lines if line["kind"] != "t"] == read(traced())


def test_a_scheduler_fed_from_the_trace_makes_the_same_plans() -> None:
    reader = TraceReader(io.StringIO(traced()))
    scheduler = Scheduler(reader.header.scheduler, reader.header.cache)
    plans: list[StepPlan] = []
    num_preempted = 0
    for line in reader:
        if line["kind"] == "add":
            scheduler.add(request_of(line), 0.0)
        elif line["kind"] == "abort":
            assert scheduler.abort(line["request_id"], 0.0)
        elif line["kind"] == "plan":
            plans.append(scheduler.schedule(0.0))
            assert plan_to_json(plans[-1]) == line
            num_preempted += sum(row.resumed for row in plans[-1].admitted)
        elif line["kind"] == "result":
            scheduler.update(next(plan for plan in plans if plan.step == line["step"]), result_from_json(line), 0.0)
    assert not scheduler.has_unfinished
    assert len(plans) > 20
    assert num_preempted > 0


def request_of(line: dict[str, Any]) -> Request:
    return Request(
        line["request_id"],
        line["prompt"],
        sampling_from_json(line["sampling"]),
        eos_token_ids=line["eos_token_ids"],
        priority=line["priority"],
        cache_salt=line["cache_salt"],
    )


def test_plans_and_results_survive_the_way_to_json_and_back() -> None:
    lines = read(traced())
    sampling = {line["handle"]: sampling_from_json(line["sampling"]) for line in lines if line["kind"] == "add"}
    for line in lines:
        if line["kind"] == "plan":
            plan = plan_from_json(line, sampling)
            assert plan_to_json(plan) == line
            assert (plan.slots.dtype, plan.samples.dtype) == (np.int32, np.bool_)
            assert all(row.sampling is sampling[row.handle] for row in plan.admitted)
        elif line["kind"] == "result":
            result = result_from_json(line)
            assert result_to_json(result) == line
            assert result.tokens.shape == (len(result.counts), 1)


def test_sampling_parameters_survive_the_way_to_json_and_back() -> None:
    sampling = SamplingParams(max_tokens=None, stop=("a", "b"), stop_token_ids=(3,), logit_bias={5: -1.0}, seed=4)

    line = json.loads(json.dumps(sampling_to_json(sampling)))

    assert sampling_from_json(line) == sampling
    assert sampling_to_json(SamplingParams()) == {}


def test_a_stop_string_is_an_abort_of_that_kind() -> None:
    text = io.StringIO()
    writer = TraceWriter(text, header())
    engine = make_engine(ScriptedExecutor(scripts({"a": b"abXcd"})), trace=writer)
    engine.add(engine.prepare("p", SamplingParams(stop=("X",)), request_id="a"))
    while engine.has_work:
        engine.step()
    writer.flush()

    lines = read(text.getvalue())

    assert [line["why"] for line in lines if line["kind"] == "abort"] == ["stop"]
    (finish,) = (line for line in lines if line["kind"] == "finish")
    assert (finish["reason"], finish["num_output_tokens"]) == ("abort", 3)


def test_the_header_has_the_options(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path, header(max_num_seqs=3)):
        pass

    found = TraceReader(path).header

    assert found == header(max_num_seqs=3)
    assert isinstance(found.scheduler, SchedulerConfig)
    assert isinstance(found.cache, CacheConfig)


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ("", "line 1: the trace is empty"),
        ("nonsense\n", "line 1: not JSON"),
        ("[1]\n", "not a JSON object"),
        ('{"kind":"header"}\n', "not a Headway trace"),
        ('{"kind":"header","format":"headway-trace","version":99}\n', "version 99; this reader reads version 1"),
        ('{"kind":"header","format":"headway-trace","version":1}\n', "the header cannot be used"),
    ],
)
def test_what_is_no_trace_is_refused(first: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        TraceReader(io.StringIO(first))


def test_a_broken_line_is_named() -> None:
    text = traced()
    lines = text.splitlines(keepends=True)
    cut_off = "".join(lines[:3]) + lines[3][:10]

    with pytest.raises(TraceError, match=r"line 4: not JSON .*cut off") as caught:
        read(cut_off)
    assert caught.value.line == 4
    with pytest.raises(TraceError, match="line 2: unknown kind 'x'"):
        read(lines[0] + '{"kind":"x"}\n')


def test_the_trace_is_written_when_the_engine_is_idle(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path, header()) as writer:
        engine = make_engine(ScriptedExecutor(echo), trace=writer)
        engine.add(engine.prepare([1, 2, EOS], request_id="a"))
        while engine.has_work:
            engine.step()

        assert [line["kind"] for line in TraceReader(path)][-1] == "finish"
