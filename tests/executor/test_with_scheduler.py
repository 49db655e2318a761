"""Scheduler and executor together: a crowded run with preemption gives every request what it gets alone."""

from __future__ import annotations

from typing import Any

import pytest

from headway.config import CacheConfig, SamplingParams, SchedulerConfig
from headway.core.events import Preempted
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from tests.executor.builders import BLOCK, VOCAB, ToyModel, make_executor

SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 42},
    {"temperature": 1.2, "seed": 7, "top_p": 0.9, "frequency_penalty": 0.5},
    {"temperature": 0.0, "repetition_penalty": 1.4, "prompt_logprobs": 1},
    {"temperature": 0.8, "seed": 3, "top_k": 10, "presence_penalty": 1.0, "min_tokens": 4, "logprobs": 1},
]


def make_request(index: int) -> Request:
    prompt = [1 + (5 * index + 3 * place) % (VOCAB - 1) for place in range(6 + 5 * (index % 4))]
    sampling = SamplingParams(max_tokens=14, ignore_eos=True, **SAMPLINGS[index % len(SAMPLINGS)])
    return Request(f"r{index}", prompt, sampling)


def run(requests: list[Request], num_blocks: int, depth: int = 1, **limits: int) -> tuple[dict[str, list[int]], int]:
    """Outputs by request, and how many preemptions there were."""
    cache = CacheConfig(block_size=BLOCK, num_blocks=num_blocks)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=8, max_model_len=64, **limits), cache)
    executor = make_executor(ToyModel(), cache=cache, **limits)
    outputs: dict[str, list[int]] = {request.request_id: [] for request in requests}
    by_handle: dict[int, Request] = {}
    for request in requests:
        scheduler.add(request, 0.0)
        by_handle[request.handle] = request
    preemptions, plans = 0, []
    while scheduler.has_unfinished:
        while len(plans) < depth and (plan := scheduler.schedule(0.0)).num_rows:
            executor.submit(plan)
            plans.append(plan)
        plan, result = plans.pop(0), executor.collect()
        assert not result.failed
        output = scheduler.update(plan, result, 0.0)
        for handle, tokens, count in zip(output.handles, output.tokens, output.counts, strict=True):
            outputs[by_handle[int(handle)].request_id] += tokens[:count].tolist()
        preemptions += sum(isinstance(event, Preempted) for event in scheduler.take_events())
    return outputs, preemptions


@pytest.fixture(scope="module")
def alone() -> dict[str, list[int]]:
    """The outputs of each request when it has the engine for itself."""
    outputs: dict[str, list[int]] = {}
    for index in range(10):
        outputs.update(run([make_request(index)], num_blocks=60, max_num_batched_tokens=64)[0])
    return outputs


@pytest.mark.parametrize("depth", [1, 3])
def test_a_crowded_run_gives_what_each_request_gets_alone(depth: int, alone: dict[str, list[int]]) -> None:
    requests = [make_request(index) for index in range(10)]
    crowded, preemptions = run(requests, num_blocks=20, depth=depth, max_num_batched_tokens=12)
    assert preemptions > 0
    assert crowded == alone
    assert len({tuple(tokens) for tokens in alone.values()}) == 10
