"""The executor on a small model: same tokens in any batch, chunks or order; failures stay where they belong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headway.config import CacheConfig, ConfigError
from headway.core.logprobs import PromptLogprobs, TokenLogprobs
from headway.core.plan import StepResult
from headway.executor import memory
from headway.executor.executor import STEP_PARTS
from headway.executor.memory import KVMemoryError, kv_block_bytes
from tests.executor.builders import BLOCK, VOCAB, Driver, ToyModel, make_executor

PROMPT = [7, 3, 9, 9, 21, 4, 30, 2, 8, 11]
OTHER = [12, 13, 14]
BANNED = ((1,), (2, 3), (11, 4), *((first, second) for first in range(20) for second in range(20)))
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 42},
    {"temperature": 1.5, "handle": 9, "top_k": 20, "top_p": 0.9},
    {"temperature": 0.9, "seed": 1, "repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 0.7},
    {"repetition_penalty": 1.8, "frequency_penalty": 0.3, "min_tokens": 5},
    {"temperature": 1.2, "seed": 3, "bad_token_ids": BANNED},
]


def run_alone(num_tokens: int = 8, **sampling: Any) -> list[int]:
    driver = Driver()
    driver.admit(0, PROMPT, **sampling)
    driver.step({0: len(PROMPT)})
    return driver.decode(0, num_tokens - 1)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_tokens_do_not_depend_on_slot_neighbours_or_chunks(sampling: dict[str, Any]) -> None:
    expected = run_alone(**{"handle": 1, **sampling})
    assert len(set(expected)) > 2
    driver = Driver()
    driver.admit(1, OTHER, temperature=1.0)
    driver.admit(2, OTHER, temperature=1.0, seed=42)
    driver.step({1: 3, 2: 2})
    driver.admit(5, PROMPT, **{"handle": 1, **sampling})
    driver.step({1: 1, 5: 4})
    driver.step({5: 1, 1: 1, 2: 1})
    driver.step({2: 1, 5: 5})
    driver.decode(5, 3, others=[2, 1])
    driver.release(1)
    assert driver.decode(5, 4, others=[2]) == expected


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_a_preempted_request_goes_on_as_if_nothing_had_happened(sampling: dict[str, Any]) -> None:
    sampling = {"handle": 1, **sampling}
    expected = run_alone(**sampling)
    driver = Driver()
    driver.admit(0, PROMPT, **sampling)
    driver.step({0: 10})
    outputs = list(driver.decode(0, 2))
    driver.release(0)
    driver.admit(0, OTHER, handle=50, temperature=2.0, logit_bias={1: 9.0}, min_tokens=3)
    driver.step({0: 3})
    driver.admit(3, PROMPT + outputs, num_prompt=len(PROMPT), **sampling)
    driver.step({0: 1, 3: 6})
    driver.step({3: 7, 0: 1})
    assert driver.decode(3, 4) == expected


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_steps_may_be_in_flight(sampling: dict[str, Any]) -> None:
    expected = run_alone(**{"handle": 1, **sampling})
    driver = Driver()
    driver.admit(0, PROMPT, **{"handle": 1, **sampling})
    for grant in (10, 1, 1, 1):
        driver.submit({0: grant})
    assert driver.executor.num_in_flight == 4 and driver.outputs[0] == []
    for _ in range(4):
        driver.collect()
        driver.submit({0: 1})
    while driver.executor.num_in_flight:
        driver.collect()
    assert driver.outputs[0] == expected


def test_only_sampling_rows_reach_the_head() -> None:
    model = ToyModel()
    driver = Driver(make_executor(model))
    driver.admit(0, PROMPT)
    driver.admit(1, OTHER)
    driver.step({0: 4, 1: 2})
    assert model.rows_in_head == []
    result = driver.step({0: 6, 1: 1})
    assert model.rows_in_head == [2] and result.counts.tolist() == [1, 1]


def test_a_row_with_nan_scores_fails_alone_and_stays_failed() -> None:
    driver = Driver(make_executor(ToyModel(poison=45)))
    driver.admit(0, PROMPT)
    driver.admit(1, [45, 3, 45], logprobs=1)
    driver.admit(2, OTHER, temperature=1.0, logprobs=1)
    driver.submit({0: 10, 1: 3, 2: 3})
    driver.submit({0: 1, 1: 1, 2: 1})
    first, second = driver.collect(), driver.collect()
    for result in (first, second):
        assert list(result.failed) == [1] and "no finite maximum" in result.failed[1]
        assert result.counts.tolist() == [1, 0, 1] and result.tokens[1, 0] == -1
        assert list(result.logprobs) == [2]
    driver.release(1)
    driver.admit(1, PROMPT)
    result = driver.step({0: 1, 1: 10})
    assert not result.failed
    assert driver.decode(0, 5) == run_alone() and driver.decode(1, 7) == run_alone()


def test_an_exception_fails_the_rows_of_its_step_only() -> None:
    model = ToyModel()
    driver = Driver(make_executor(model))
    driver.admit(0, OTHER)
    driver.admit(1, PROMPT)
    driver.step({1: 10})
    model.explode = True
    result = driver.step({0: 3})
    assert result.failed == {0: "the step failed: RuntimeError: out of luck"} and result.counts.tolist() == [0]
    model.explode = False
    assert driver.decode(1, 7) == run_alone()
    assert list(driver.step({0: 1, 1: 1}).failed) == [0]


def test_a_request_that_cannot_be_entered_fails_alone() -> None:
    driver = Driver()
    driver.admit(0, PROMPT)
    driver.admit(1, OTHER, logit_bias={VOCAB: 1.0})
    result = driver.step({1: 3, 0: 10})
    assert list(result.failed) == [0] and "logit_bias" in result.failed[0]
    assert driver.decode(0, 7) == run_alone()


def test_logprobs_come_with_the_rows_that_asked() -> None:
    driver = Driver()
    driver.admit(0, PROMPT, logprobs=2)
    driver.admit(1, OTHER)
    result = driver.step({1: 3, 0: 10})
    assert list(result.logprobs) == [1]
    entries = result.logprobs[1]
    assert isinstance(entries, list) and len(entries) == 1
    assert entries[0].token == result.tokens[1, 0] and entries[0].rank == 1
    assert entries[0].top[0] == (entries[0].token, entries[0].logprob)


def prompt_entries(result: StepResult, row: int = 0) -> PromptLogprobs:
    entries = result.prompt_logprobs[row]
    assert isinstance(entries, PromptLogprobs)
    return entries


@pytest.mark.parametrize("chunks", [[24], [8, 8, 8], [1, 22, 1], [23, 1], [5, 5, 5, 5, 4]])
def test_prompt_logprobs_in_chunks_equal_the_whole(chunks: list[int]) -> None:
    prompt = [(7 * i) % VOCAB for i in range(24)]

    def run(parts: list[int]) -> list[TokenLogprobs | None]:
        driver = Driver()
        driver.admit(0, OTHER)
        driver.admit(1, prompt, prompt_logprobs=2)
        collected: list[TokenLogprobs | None] = []
        for part in parts:
            result = driver.step({0: 1 if driver.outputs[0] else 3, 1: part})
            if 1 in result.prompt_logprobs:
                entries = prompt_entries(result, 1)
                assert entries.start == len(collected)
                collected += entries.entries
        assert not driver.step({1: 1}).prompt_logprobs
        return collected

    whole, parted = run([24]), run(chunks)
    assert len(parted) == 24 and parted[0] is None
    for place in range(1, 24):
        expected, found = whole[place], parted[place]
        assert expected is not None and found is not None
        assert found.token == expected.token == prompt[place] and found.rank == expected.rank
        assert found.logprob == pytest.approx(expected.logprob, abs=1e-4)
        assert [token for token, _ in found.top] == [token for token, _ in expected.top]


def test_prompt_logprobs_are_the_models() -> None:
    """Against a decode of the same tokens: entry ``p`` is the log probability that a sample at ``p`` would have had."""
    driver = Driver()
    driver.admit(0, PROMPT[:6], prompt_logprobs=0)
    entries = prompt_entries(driver.step({0: 6})).entries
    other = Driver()
    other.admit(0, PROMPT[:5], logprobs=0, logit_bias={PROMPT[5]: 100.0})
    sampled = other.step({0: 5}).logprobs[0]
    assert isinstance(sampled, list) and sampled[0].token == PROMPT[5]
    last = entries[5]
    assert last is not None and last.logprob == pytest.approx(sampled[0].logprob, abs=1e-5)


def test_a_resumed_prompt_delivers_its_entries_again_by_place() -> None:
    driver = Driver()
    driver.admit(0, PROMPT, prompt_logprobs=1)
    first = prompt_entries(driver.step({0: 6}))
    driver.release(0)
    driver.admit(2, PROMPT, prompt_logprobs=1)
    again = [prompt_entries(driver.step({2: count})) for count in (4, 6)]
    assert [(part.start, len(part.entries)) for part in (first, *again)] == [(0, 7), (0, 5), (5, 5)]


def test_a_prompt_of_one_token_has_one_empty_entry() -> None:
    driver = Driver()
    driver.admit(0, [5], prompt_logprobs=3)
    assert prompt_entries(driver.step({0: 1})) == PromptLogprobs(0, (None,))


def test_plans_that_are_too_small_or_too_large_are_refused() -> None:
    driver = Driver(make_executor(max_num_batched_tokens=8))
    driver.admit(0, PROMPT)
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        driver.submit({0: 9})
    with pytest.raises(ConfigError, match="at least one row"):
        driver.submit({})
    assert driver.executor.num_in_flight == 0
    with pytest.raises(RuntimeError, match="without a plan"):
        driver.executor.collect()


def test_a_block_outside_the_pool_never_reaches_a_kernel() -> None:
    driver = Driver()
    driver.admit(0, OTHER)
    driver.step({0: 3})
    driver._free.append(61)
    driver.step({0: 1})
    result = driver.step({0: 1})
    assert "block_ids" in result.failed[0]


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ({"device": "cuda"}, "device"),
        ({"kv_dtype": "int4"}, "kv_dtype"),
        ({"cache": CacheConfig(num_groups=2)}, "num_groups"),
    ],
)
def test_unusable_arguments_are_refused(overrides: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_executor(**overrides)
    assert caught.value.field == field


def test_a_kv_pool_that_does_not_fit_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    per_block = kv_block_bytes(ToyModel().config, BLOCK, torch.float32)
    assert per_block == 2 * 2 * BLOCK * 8 * 4
    monkeypatch.setattr(memory, "available_bytes", lambda device: 50 * per_block + 3)
    with pytest.raises(KVMemoryError) as caught:
        make_executor()
    assert (caught.value.field, caught.value.needed_bytes) == ("num_blocks", 61 * per_block)
    assert str(61 * per_block) in str(caught.value) and "at most 49 blocks fit" in str(caught.value)
    monkeypatch.setattr(memory, "available_bytes", lambda device: 61 * per_block)
    assert make_executor().kv_bytes == 61 * per_block


def test_freed_memory_is_kept_where_the_c_library_can() -> None:
    class LibC:
        def __init__(self, answer: int) -> None:
            self.answer = answer
            self.settings: dict[int, int] = {}

        def mallopt(self, name: int, value: int) -> int:
            self.settings[name] = value
            return self.answer

    glibc = LibC(1)
    assert memory.keep_freed_memory(glibc)
    assert glibc.settings == {-3: 32 * 2**20, -1: 2**30, -8: 1}
    assert not memory.keep_freed_memory(LibC(0))
    assert not memory.keep_freed_memory(object())


def test_kv_may_be_kept_in_half_precision() -> None:
    executor = make_executor(kv_dtype="bfloat16")
    assert executor.kv_bytes == make_executor().kv_bytes // 2
    driver = Driver(executor)
    driver.admit(0, PROMPT)
    assert driver.step({0: 10}).counts.tolist() == [1]


def test_times_are_those_of_the_step_collected_last() -> None:
    driver = Driver()
    executor = driver.executor
    driver.admit(0, PROMPT)
    driver.submit({0: 10})
    driver.submit({0: 1})
    assert not any(executor.total_times.values())
    driver.collect()
    first = executor.last_times
    assert executor.total_times == first and set(first) == set(STEP_PARTS) and all(first.values())
    driver.collect()
    assert executor.last_times is not first
    for part, seconds in executor.last_times.items():
        assert executor.total_times[part] == pytest.approx(first[part] + seconds)


def test_a_step_without_samples_brings_no_tokens() -> None:
    driver = Driver()
    driver.admit(0, PROMPT)
    result = driver.step({0: 4})
    assert result.tokens.tolist() == [[-1]] and result.counts.tolist() == [0]
    assert result.tokens.dtype == result.counts.dtype == np.int32
