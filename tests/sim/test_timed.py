"""The executor on virtual time: steps take what the model says, one after the other; tokens repeat."""

from __future__ import annotations

import numpy as np
import pytest

from headway.config import CacheConfig, ConfigError, SamplingParams, SchedulerConfig
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from headway.sim.timed import LatencyModel, TimedExecutor, VirtualClock

LATENCY = LatencyModel(step_s=1.0, token_s=0.1, kv_token_s=0.01, copy_s=5.0, block_copy_s=0.5)


def make_scheduler(num_blocks: int = 50, num_host_blocks: int = 0, **options: object) -> Scheduler:
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64, **options)  # type: ignore[arg-type]
    cache = CacheConfig(block_size=4, num_blocks=num_blocks, num_host_blocks=num_host_blocks)
    return Scheduler(config, cache)


def add(scheduler: Scheduler, name: str, prompt: int, outputs: int) -> None:
    tokens = [len(name) + place for place in range(prompt)]
    scheduler.add(Request(name, tokens, SamplingParams(max_tokens=outputs, ignore_eos=True)), 0.0)


def outputs_of(scheduler: Scheduler, executor: TimedExecutor, depth: int = 1) -> dict[int, list[int]]:
    """Tokens by handle."""
    tokens: dict[int, list[int]] = {}
    plans = []
    while scheduler.has_unfinished:
        while len(plans) < depth and (plan := scheduler.schedule(0.0)).num_rows:
            executor.submit(plan)
            plans.append(plan)
        output = scheduler.update(plans.pop(0), executor.collect(), 0.0)
        for handle, row in zip(output.handles.tolist(), output.tokens[:, 0].tolist(), strict=True):
            tokens.setdefault(handle, []).append(row)
    return tokens


def test_a_step_takes_what_the_model_says() -> None:
    scheduler, clock = make_scheduler(), VirtualClock()
    executor = TimedExecutor(LATENCY, clock)
    add(scheduler, "a", prompt=10, outputs=3)

    executor.submit(plan := scheduler.schedule(0.0))
    assert clock() == 0.0
    result = executor.collect()
    assert clock() == pytest.approx(1.0 + 10 * 0.1 + 10 * 0.01)
    assert (result.forward_s, result.copy_s) == (pytest.approx(2.1), 0.0)
    scheduler.update(plan, result, 0.0)
    executor.submit(scheduler.schedule(0.0))
    executor.collect()
    assert clock() == pytest.approx(2.1 + 1.0 + 0.1 + 11 * 0.01)
    assert executor.busy_s == pytest.approx(clock())


def test_steps_in_flight_follow_each_other() -> None:
    scheduler, clock = make_scheduler(), VirtualClock()
    executor = TimedExecutor(LatencyModel(step_s=1.0, token_s=0.0), clock)
    add(scheduler, "a", prompt=10, outputs=3)
    executor.submit(scheduler.schedule(0.0))
    executor.submit(scheduler.schedule(0.0))

    assert executor.num_in_flight == 2
    assert [executor.collect() and clock() for _ in range(2)] == [1.0, 2.0]
    clock.advance_to(10.0)
    clock.advance_to(4.0)
    executor.submit(scheduler.schedule(0.0))
    executor.collect()
    assert clock() == 11.0
    with pytest.raises(RuntimeError, match="without a plan"):
        executor.collect()


def test_copies_take_time_by_the_block() -> None:
    scheduler, clock = make_scheduler(num_blocks=8, num_host_blocks=20, preemption_mode="swap"), VirtualClock()
    executor = TimedExecutor(LATENCY, clock)
    for name in ("a", "bb", "ccc"):
        add(scheduler, name, prompt=8, outputs=12)
    copied = []
    while scheduler.has_unfinished:
        executor.submit(plan := scheduler.schedule(0.0))
        result = executor.collect()
        scheduler.update(plan, result, 0.0)
        blocks = len(plan.swap_out) + len(plan.swap_in)
        assert result.copy_s == pytest.approx(5.0 + 0.5 * blocks if blocks else 0.0)
        copied.append(blocks)
    assert max(copied) > 0


def test_tokens_depend_on_request_and_place_only() -> None:
    def run(depth: int, num_blocks: int) -> dict[int, list[int]]:
        scheduler = make_scheduler(num_blocks=num_blocks)
        for name in ("a", "bb", "ccc"):
            add(scheduler, name, prompt=8, outputs=12)
        return outputs_of(scheduler, TimedExecutor(LATENCY, VirtualClock(), vocab_size=100), depth)

    alone = run(1, 50)

    assert run(1, 8) == run(3, 50) == alone
    assert [len(tokens) for tokens in alone.values()] == [12] * 3
    assert len({tuple(tokens) for tokens in alone.values()}) == 3
    assert all(0 <= token < 100 for tokens in alone.values() for token in tokens)


def test_a_chunk_that_does_not_sample_has_no_token() -> None:
    scheduler = make_scheduler()
    executor = TimedExecutor(LATENCY, VirtualClock())
    add(scheduler, "a", prompt=20, outputs=2)

    executor.submit(scheduler.schedule(0.0))
    result = executor.collect()

    assert np.array_equal(result.tokens, [[-1]])
    assert result.counts.tolist() == [0]


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_latency_that_is_no_time_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="token_s"):
        LatencyModel(step_s=0.0, token_s=value)
