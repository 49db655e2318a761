"""What preemptions cost: counted by kind, and predictions held against what came true."""

from __future__ import annotations

from typing import Any

import pytest

from headway.config import SamplingParams
from headway.engine.engine import Engine
from headway.engine.metrics import host_kv_usage, read_gauges
from tests.engine.builders import TimedExecutor, make_engine

TIGHT = {"num_blocks": 14, "max_num_seqs": 4, "max_num_batched_tokens": 12}


def crowded(executor: TimedExecutor, num_requests: int = 16, **options: Any) -> tuple[Engine, list[float]]:
    """An engine that ran requests on too few blocks, and its host usage after every step."""
    engine = make_engine(executor, isolate_errors=False, **{**TIGHT, **options})
    usage = []
    for number in range(num_requests):
        prompt = [number + 10 * place for place in range(12 + number % 3)]
        sampling = SamplingParams(max_tokens=14, ignore_eos=True)
        engine.add(engine.prepare(prompt, sampling, request_id=f"r{number}"))
    while engine.has_work:
        engine.step()
        usage.append(host_kv_usage(engine.scheduler))
    return engine, usage


def test_preemptions_are_counted_by_kind_and_blocks_by_direction() -> None:
    executor = TimedExecutor()
    engine, usage = crowded(executor, num_host_blocks=30, preemption_mode="swap", enable_prefix_caching=False)

    counters = engine.metrics.counters
    assert counters.preemptions["swap", "blocks"] > 0
    assert counters.preemptions["recompute", "blocks"] == counters.lost_tokens["blocks"] == 0
    assert counters.swapped_out_blocks == sum(len(plan.swap_out) for plan in executor.plans) > 0
    assert counters.swapped_in_blocks == sum(len(plan.swap_in) for plan in executor.plans) > 0
    assert 0 < counters.restored_tokens <= 4 * counters.swapped_in_blocks
    assert counters.host_cached_tokens == counters.recomputed_tokens == 0
    assert 0.0 < max(usage) <= 1.0
    assert usage[-1] == 0.0


def test_what_new_requests_find_on_the_host_is_counted_apart() -> None:
    engine, _ = crowded(TimedExecutor(), num_host_blocks=30, preemption_mode="swap")
    before = engine.metrics.counters.host_cached_tokens
    for number in range(16):  # the same prompts once more: some of their blocks are on the host only
        prompt = [number + 10 * place for place in range(12 + number % 3)]
        engine.add(engine.prepare(prompt, SamplingParams(max_tokens=1), request_id=f"r{number}"))
    while engine.has_work:
        engine.step()

    assert engine.metrics.counters.host_cached_tokens > before
    assert engine.metrics.counters.host_cached_tokens == engine.scheduler.kv.stats.first.host_tokens


def test_swapped_requests_and_their_blocks_are_gauges() -> None:
    executor = TimedExecutor()
    engine = make_engine(executor, num_host_blocks=30, preemption_mode="swap", **TIGHT)
    for number in range(4):
        prompt = [number + 10 * place for place in range(12)]
        engine.add(engine.prepare(prompt, SamplingParams(max_tokens=20, ignore_eos=True), request_id=f"r{number}"))
    while not engine.scheduler.num_swapped:
        engine.step()

    gauges = read_gauges(engine.scheduler)

    num_copied = len(executor.plans[-1].swap_out)
    assert num_copied > 0
    assert (gauges.swapped, gauges.host_kv_usage) == (1, pytest.approx(num_copied / 30))
    assert read_gauges(make_engine(TimedExecutor()).scheduler).host_kv_usage == 0.0


def test_a_swap_costs_what_was_predicted_where_copies_take_what_they_took() -> None:
    engine, _ = crowded(TimedExecutor(), num_host_blocks=30, preemption_mode="swap", enable_prefix_caching=False)

    costs = engine.metrics.preemption_costs
    measured = [record for record in costs.records if record.predicted_swap_s > 0]
    assert len(measured) > 3
    for record in measured:
        assert record.kind == "swap"
        assert (
            record.real_s == pytest.approx(record.predicted_s) == pytest.approx(2 * 0.0002 * record.num_copied_blocks)
        )
        assert record.resumed_step > record.step
        assert (record.num_recomputed_tokens, record.num_restored_tokens > 0) == (0, True)
    assert costs.real_s["swap"] == pytest.approx(sum(record.real_s for record in costs.records))
    assert costs.predicted_s["recompute"] == costs.real_s["recompute"] == 0.0


def test_a_recompute_costs_what_was_predicted_where_nothing_is_found_again() -> None:
    engine, _ = crowded(TimedExecutor(), enable_prefix_caching=False)

    costs = engine.metrics.preemption_costs
    assert len(costs.records) > 3
    for record in costs.records:
        assert record.kind == "recompute"
        assert record.real_s == pytest.approx(0.001 * record.num_recomputed_tokens, rel=0.05)
        assert record.predicted_s == pytest.approx(record.real_s, rel=0.05)
        assert record.predicted_swap_s == record.num_copied_blocks == record.num_restored_tokens == 0


def test_a_request_that_ends_while_it_is_away_leaves_no_record() -> None:
    engine = make_engine(TimedExecutor(), num_host_blocks=30, preemption_mode="swap", **TIGHT)
    for number in range(4):
        prompt = [number + 10 * place for place in range(12)]
        engine.add(engine.prepare(prompt, SamplingParams(max_tokens=20, ignore_eos=True), request_id=f"r{number}"))
    while not engine.scheduler.num_swapped:
        engine.step()
    for handle in range(1, 5):
        engine.abort(handle)
    while engine.has_work:
        engine.step()

    assert not engine.metrics.preemption_costs.records
    assert host_kv_usage(engine.scheduler) == 0.0
