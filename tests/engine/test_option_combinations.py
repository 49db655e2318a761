"""Options together: what starts can serve the longest request it allows; what could not is refused at start."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway import build
from headway.build import build_engine
from headway.config import CacheConfig, ConfigError, EngineOptions, SamplingParams, SchedulerConfig
from headway.config.combinations import check_fits, tight_limits
from headway.core.request import FinishReason, Request
from headway.core.scheduler import Scheduler
from headway.engine.loop import EngineLoop
from headway.server.run import describe
from headway.sim.fake import FakeExecutor
from tests.core.builders import make_prompt
from tests.engine.tiny_model import write_tiny_model
from tests.executor.builders import ToyModel
from tests.server.running import serving

KIB = 2**-20
"""One KiB in GiB; a block of the toy model takes 2 layers x 2 x 8 floats per token, 128 bytes."""

OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "max_model_len": st.none() | st.integers(2, 150),
    "block_size": st.sampled_from([1, 2, 4, 16, 64]),
    "num_blocks": st.none() | st.integers(1, 150),
    "kv_cache_memory_gib": st.none() | st.floats(0.0, 40.0).map(lambda number: number * KIB),
    "swap_space_gib": st.just(0.0) | st.floats(0.0, 40.0).map(lambda number: number * KIB),
    "max_num_seqs": st.integers(1, 40),
    "max_num_batched_tokens": st.integers(1, 200),
    "enable_chunked_prefill": st.booleans(),
    "enable_prefix_caching": st.booleans(),
    "scheduling_policy": st.sampled_from(["fcfs", "priority", "shortest", "longest_prefix", "deadline", "fair"]),
    "ageing_s": st.none() | st.sampled_from([0.0, 1.0, 60.0]),
    "reservation": st.sampled_from(["nothing", "prompt", "all", "predicted"]),
    "max_overtakes": st.integers(0, 3),
    "preemption_mode": st.sampled_from(["auto", "recompute", "swap"]),
    "victim": st.sampled_from(["newest", "cheapest"]),
    "watermark": st.floats(0.0, 0.99),
    "prefill_schedule_interval": st.sampled_from([1, 2, 7, 1000]),
    "long_prefill_token_threshold": st.just(0) | st.integers(1, 200),
    "max_num_queued_reqs": st.none() | st.integers(0, 50),
    "max_num_queued_tokens": st.none() | st.integers(0, 50),
}


def model_of(length: int) -> Any:
    """All that sizing looks at."""
    toy = ToyModel()
    config = dataclasses.replace(toy.config, max_position_embeddings=length)
    return SimpleNamespace(config=config, compute_dtype=torch.float32, device=torch.device("cpu"))


def serve_longest(config: SchedulerConfig, cache: CacheConfig, count: int) -> list[FinishReason]:
    """How requests of the longest prompt allowed end that come one after the other while the first still runs."""
    loop = EngineLoop(
        Scheduler(config, cache), FakeExecutor(block_size=cache.block_size), lambda: 0.0, isolate_errors=False
    )
    for number in range(count):
        prompt = make_prompt(str(number), config.max_model_len - 1)
        loop.add(Request(str(number), prompt, SamplingParams(max_tokens=None, ignore_eos=True)))
    ends = []
    for _ in range(200 + 2 * count * config.max_model_len):
        if not loop.has_work:
            break
        output = loop.step().output
        ends += [event.reason for event in output.finished] if output is not None else []
    assert not loop.has_work, loop.scheduler.wait_reasons()
    return ends


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.fixed_dictionaries({}, optional=OPTIONS),
    st.sampled_from([2, 16, 100, 150]),
    st.sampled_from([None, 4096, 2**20]),
)
def test_what_starts_serves_the_longest_request_it_allows(
    options: dict[str, Any], length: int, free_bytes: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "available_bytes", lambda device: free_bytes)
        patch.setattr(build, "UNKNOWN_MEMORY", 2**16)
        try:
            asked = EngineOptions(model="any", **options)
            sizes = build._size(asked, model_of(length))
            scheduler = Scheduler(sizes.scheduler, sizes.cache)
        except ConfigError as refusal:
            assert refusal.field in {*options, *(spec.name for spec in dataclasses.fields(EngineOptions))}
            return

    assert scheduler.largest_prompt >= sizes.scheduler.max_model_len - 1
    assert options.get("max_model_len") in (None, sizes.scheduler.max_model_len)
    for count in (1, 3):
        assert serve_longest(sizes.scheduler, sizes.cache, count) == [FinishReason.LENGTH] * count


@given(st.integers(2, 60), st.sampled_from([1, 4, 16]), st.integers(1, 30), st.integers(1, 3))
def test_what_is_refused_for_its_blocks_could_not_be_served(length: int, size: int, blocks: int, groups: int) -> None:
    config = SchedulerConfig(max_model_len=length, max_num_seqs=2)
    cache = CacheConfig(block_size=size, num_blocks=max(blocks, groups), num_groups=groups)
    try:
        check_fits(config, cache)
    except ConfigError as refusal:
        assert refusal.field == "max_model_len"
        assert Scheduler(config, cache).largest_prompt < length - 1
    else:
        assert serve_longest(config, cache, 1) == [FinishReason.LENGTH]


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"max_model_len": 63, "num_blocks": 1}, "max_model_len", "at most 16, the tokens that 1 KV blocks of 16 hold"),
        ({"max_model_len": 100, "kv_cache_memory_gib": 8 * KIB}, "max_model_len", "must be at most 48"),
        ({"num_blocks": 1, "block_size": 1}, "num_blocks", "must hold 2 tokens at least"),
        ({"max_model_len": 64, "enable_chunked_prefill": False, "max_num_batched_tokens": 63, "max_num_seqs": 2},
         "max_num_batched_tokens", "must be at least max_model_len"),
        ({"long_prefill_token_threshold": 48, "num_blocks": 3}, "long_prefill_token_threshold", "has no effect unless"),
        ({"scheduling_policy": "longest_prefix", "enable_prefix_caching": False}, "scheduling_policy", "has no effect"),
    ],
)  # fmt: skip
def test_what_makes_each_other_impossible_is_refused(options: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        build._size(EngineOptions(model="any", **options), model_of(100))

    assert refusal.value.field == field


def test_a_length_that_nobody_asked_for_is_what_all_other_options_allow() -> None:
    def length(**options: Any) -> tuple[int, str]:
        sizes = build._size(EngineOptions(model="any", max_num_seqs=2, **options), model_of(100))
        return sizes.scheduler.max_model_len, sizes.why_length

    whole = {"enable_chunked_prefill": False}
    assert length() == (100, "the longest context of this model")
    assert length(num_blocks=3) == (48, "what the KV blocks hold")
    assert length(max_num_batched_tokens=40, **whole) == (40, "max_num_batched_tokens, since prompts are not cut")
    assert length(max_num_batched_tokens=40) == (100, "the longest context of this model")
    assert length(max_num_batched_tokens=60, num_blocks=3, **whole) == (48, "what the KV blocks hold")


@pytest.mark.parametrize(
    ("config", "cache", "sentence"),
    [
        ({"max_num_seqs": 5}, {"num_blocks": 4}, "max_num_seqs is 5, but 4 KV blocks hold at most as many requests"),
        ({"max_num_queued_reqs": 0}, {}, "max_num_queued_reqs is 0: a server lets nobody in"),
        ({"max_num_queued_reqs": 3}, {}, "max_num_queued_reqs is 3: a server never fills max_num_seqs (4)"),
        ({"watermark": 0.5}, {}, "watermark is 0.5: a prompt above 40 tokens starts only while nothing runs"),
        ({}, {"num_host_blocks": 3}, "the swap space holds sequences of at most 12 tokens"),
    ],
)
def test_what_leaves_an_option_without_much_use_is_said(
    config: dict[str, Any], cache: dict[str, Any], sentence: str
) -> None:
    limits = tight_limits(
        SchedulerConfig(**{"max_num_seqs": 4, "max_model_len": 64, **config}),
        CacheConfig(**{"block_size": 4, "num_blocks": 20, **cache}),
    )

    assert [limit for limit in limits if sentence in limit]
    assert all(limit.startswith("note: ") for limit in limits)


def test_options_that_leave_each_other_alone_are_not_worth_a_sentence() -> None:
    assert tight_limits(SchedulerConfig(), CacheConfig()) == ()


def test_the_sentences_are_among_the_limits_of_the_engine(tmp_path: Path) -> None:
    said: list[str] = []
    options = EngineOptions(model=str(write_tiny_model(tmp_path)), num_blocks=5, max_num_seqs=8, weight_dtype="float32")

    engine = build_engine(options, say=said.append)

    assert "note: max_num_seqs is 8, but 5 KV blocks hold at most as many requests" in engine.limits
    assert tuple(said) == engine.limits


def test_a_call_that_the_queue_can_never_let_in_is_refused_for_good() -> None:
    """It used to be told to try again later."""
    with serving(max_num_queued_reqs=5) as server:
        answers = [server.complete("ab", n=6), server.complete(["ab"] * 6), server.complete("ab", n=5)]
        limits = [sentence for sentence in describe(server.service) if sentence.startswith("a call")]

    assert [answer.status_code for answer in answers] == [400, 400, 200]
    assert "5 generations" in limits[0]
    assert "n and best_of 5" in limits[0]


def test_isolation_of_a_cache_that_is_off_is_refused() -> None:
    key = {"api_key": ("secret",), "cache_isolation": True}

    with (
        pytest.raises(ConfigError, match="has no effect without enable_prefix_caching"),
        serving(options=key, enable_prefix_caching=False),
    ):
        pass
