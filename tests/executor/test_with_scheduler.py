"""Scheduler and executor together: a crowded run with preemption gives every request what it gets alone."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import pytest

from headway.config import CacheConfig, SamplingParams, SchedulerConfig
from headway.core.events import Preempted
from headway.core.plan import StepPlan, StepResult
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from headway.executor.executor import ModelExecutor
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


class LateExecutor:
    """Does nothing when a plan is submitted and everything when its result is awaited, as a device that lags behind."""

    def __init__(self, executor: ModelExecutor) -> None:
        self._executor = executor
        self._plans: deque[StepPlan] = deque()

    def submit(self, plan: StepPlan) -> None:
        self._plans.append(plan)

    def collect(self) -> StepResult:
        self._executor.submit(self._plans.popleft())
        return self._executor.collect()


def run(
    requests: list[Request],
    num_blocks: int,
    depth: int = 1,
    num_host_blocks: int = 0,
    late: bool = False,
    caching: bool = True,
    max_num_batched_tokens: int = 64,
    **options: Any,
) -> tuple[dict[str, list[int]], Counter[str]]:
    """Outputs by request, and how many preemptions of each kind there were."""
    cache = CacheConfig(
        block_size=BLOCK, num_blocks=num_blocks, num_host_blocks=num_host_blocks, enable_prefix_caching=caching
    )
    config = SchedulerConfig(max_num_seqs=8, max_model_len=64, max_num_batched_tokens=max_num_batched_tokens, **options)
    scheduler = Scheduler(config, cache)
    model = make_executor(ToyModel(), cache=cache, max_num_batched_tokens=max_num_batched_tokens)
    executor = LateExecutor(model) if late else model
    outputs: dict[str, list[int]] = {request.request_id: [] for request in requests}
    by_handle: dict[int, Request] = {}
    for request in requests:
        scheduler.add(request, 0.0)
        by_handle[request.handle] = request
    preemptions: Counter[str] = Counter()
    plans: list[StepPlan] = []
    while scheduler.has_unfinished:
        while len(plans) < depth and (plan := scheduler.schedule(0.0)).num_rows:
            executor.submit(plan)
            plans.append(plan)
        plan, result = plans.pop(0), executor.collect()
        assert not result.failed
        output = scheduler.update(plan, result, 0.0)
        for handle, tokens, count in zip(output.handles, output.tokens, output.counts, strict=True):
            outputs[by_handle[int(handle)].request_id] += tokens[:count].tolist()
        preemptions.update(event.kind for event in scheduler.take_events() if isinstance(event, Preempted))
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
    assert preemptions["recompute"] > 0
    assert crowded == alone
    assert len({tuple(tokens) for tokens in alone.values()}) == 10


@pytest.mark.parametrize("late", [False, True], ids=["prompt", "late"])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("num_host_blocks", [6, 40])
@pytest.mark.parametrize("caching", [False, True], ids=["uncached", "cached"])
def test_a_swapped_run_gives_what_each_request_gets_alone(
    depth: int, late: bool, num_host_blocks: int, caching: bool, alone: dict[str, list[int]]
) -> None:
    requests = [make_request(index) for index in range(10)]
    crowded, preemptions = run(
        requests,
        num_blocks=20,
        depth=depth,
        num_host_blocks=num_host_blocks,
        late=late,
        caching=caching,
        max_num_batched_tokens=12,
        preemption_mode="swap",
    )
    assert preemptions["swap"] > 0
    assert (preemptions["recompute"] > 0) == (num_host_blocks == 6)
    assert crowded == alone
