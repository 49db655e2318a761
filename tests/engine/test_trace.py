"""The step trace: the same run writes the same bytes, and what is in it suffices to make every decision again."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.config import CacheConfig, ConfigError, SamplingParams, SchedulerConfig
from headway.core.events import Preempted
from headway.core.plan import StepPlan
from headway.core.policies import POLICIES
from headway.core.scheduler import Scheduler
from headway.engine.engine import Engine
from headway.engine.trace import TraceError, TraceHeader, TraceReader, TraceWriter
from headway.engine.trace_records import (
    plan_from_json,
    plan_to_json,
    request_from_json,
    result_from_json,
    result_to_json,
    sampling_from_json,
    sampling_to_json,
)
from headway.sim.fake import FakeExecutor
from tests.engine.builders import EOS, ScriptedExecutor, TimedExecutor, echo, make_engine, make_scheduler, scripts

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
            engine.loop.abort(7)
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


def replay(text: str) -> Counter[str]:
    """Make every decision of a trace again; preemptions by kind."""
    reader = TraceReader(io.StringIO(text))
    scheduler = Scheduler(reader.header.scheduler, reader.header.cache)
    plans: dict[int, StepPlan] = {}
    for line in reader:
        if line["kind"] == "add":
            scheduler.add(request_from_json(line), line.get("arrival_s", 0.0))
        elif line["kind"] == "abort":
            assert scheduler.abort(line["handle"], 0.0)
        elif line["kind"] == "plan":
            plan = plans[line["step"]] = scheduler.schedule(line.get("now", 0.0))
            assert plan_to_json(plan, line.get("now")) == line
        elif line["kind"] == "result":
            scheduler.update(plans[line["step"]], result_from_json(line), 0.0)
    assert not scheduler.has_unfinished
    assert len(plans) > 20
    return Counter(event.kind for event in scheduler.take_events() if isinstance(event, Preempted))


def test_a_scheduler_fed_from_the_trace_makes_the_same_plans() -> None:
    assert replay(traced())["recompute"] > 0


def crowded(**options: Any) -> str:
    """The trace of a run with times, on too few blocks."""
    settings = {"num_blocks": 14, "max_num_seqs": 4, "max_num_batched_tokens": 12, **options}
    text = io.StringIO()
    writer = TraceWriter(text, header(**settings))
    executor = TimedExecutor(block_copy_s=lambda step: 0.0002 if step % 40 < 20 else 0.02)  # worth its while, or not
    engine = make_engine(executor, trace=writer, isolate_errors=False, **settings)
    for number in range(24):
        prompt = [number if place > 8 else place for place in range(12 + number % 3)]
        engine.add(
            engine.prepare(
                prompt,
                SamplingParams(max_tokens=14, ignore_eos=True),
                request_id=f"r{number}",
                priority=-number % 3,
                tenant="ab"[number % 2],
                deadline_s=9.0 - number if number % 4 == 1 and number < 9 else None,
                slo="batch" if number % 4 == 2 else "",
            )
        )
        engine.step()
    while engine.has_work:
        engine.step()
    writer.flush()
    return text.getvalue()


@pytest.mark.parametrize("ageing_s", [None, 5.0])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_can_be_replayed(policy: str, ageing_s: float | None) -> None:
    if ageing_s is not None and POLICIES[policy].default_ageing_s is None:
        with pytest.raises(ConfigError, match="has no effect"):
            crowded(scheduling_policy=policy, ageing_s=ageing_s)
        return
    text = crowded(scheduling_policy=policy, ageing_s=ageing_s, num_host_blocks=20, max_overtakes=2)

    assert replay(text)["swap"] > 0
    assert text == crowded(scheduling_policy=policy, ageing_s=ageing_s, num_host_blocks=20, max_overtakes=2)


@pytest.mark.parametrize("victim", ["newest", "cheapest"])
def test_decisions_by_measured_times_can_be_replayed(victim: str) -> None:
    kinds = replay(crowded(num_host_blocks=40, preemption_mode="auto", victim=victim))

    assert kinds["swap"] > 0
    assert kinds["recompute"] > 0


def test_swapping_always_can_be_replayed() -> None:
    text = crowded(num_host_blocks=40, preemption_mode="swap")

    assert set(replay(text)) == {"swap"}
    lines = read(text)
    assert any(line["swap_out"] for line in lines if line["kind"] == "plan")
    assert any(line["swap_in"] for line in lines if line["kind"] == "plan")


@pytest.mark.parametrize(
    ("options", "now", "seconds"),
    [
        ({}, False, False),
        ({"scheduling_policy": "priority"}, False, False),
        ({"scheduling_policy": "priority", "ageing_s": 3.0}, True, False),
        ({"scheduling_policy": "deadline"}, True, False),
        ({"num_host_blocks": 20, "preemption_mode": "swap"}, False, False),
        ({"num_host_blocks": 20}, False, True),
        ({"victim": "cheapest"}, False, True),
    ],
    ids=str,
)
def test_times_are_in_the_trace_where_they_decide(options: dict[str, Any], now: bool, seconds: bool) -> None:
    keys = {line["kind"]: line.keys() for line in read(crowded(**options))}

    assert ("now" in keys["plan"]) == ("arrival_s" in keys["add"]) == now
    assert ("forward_s" in keys["result"]) == ("copy_s" in keys["result"]) == seconds


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
        ('{"kind":"header","format":"headway-trace","version":99}\n', "version 99; this reader reads version 3"),
        ('{"kind":"header","format":"headway-trace","version":3}\n', "the header cannot be used"),
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
