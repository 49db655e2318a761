"""The whole engine on a tiny random model: tokens as transformers makes them, options, limits, the trace."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

import headway
from headway.build import LLM, build_engine, load_model
from headway.config import ConfigError, EngineOptions, SamplingParams
from headway.engine.llm import OfflineLLM, PromptRefused
from headway.engine.trace import TraceReader
from headway.models.loading import ModelNotFound
from tests.engine.tiny_model import BOS, write_tiny_model

PROMPTS = ["Hello", "Hello there, this is a longer one", "x", "Tokens: 1 2 3 4 5 6 7 8 9", "Hello there"]
GREEDY = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
SMALL = {"num_blocks": 64, "max_num_seqs": 8, "weight_dtype": "float32"}


@pytest.fixture(scope="module", autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(str(folder), **SMALL)


def token_ids(model: LLM, prompts: Any, sampling: Any) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in model.generate(prompts, sampling)]


def test_greedy_tokens_are_those_of_transformers(llm: LLM, folder: Path) -> None:
    reference = LlamaForCausalLM.from_pretrained(folder).eval()
    expected = []
    for prompt in PROMPTS:
        ids = torch.tensor([[BOS, *llm.engine.tokenizer.encode(prompt, add_special_tokens=False)]])  # type: ignore[union-attr]
        with torch.inference_mode():
            made = reference.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, min_new_tokens=20, do_sample=False
            )
        expected.append(made[0, ids.shape[1] :].tolist())
    # transformers keeps end-of-text from being chosen; so does min_tokens here
    forced = SamplingParams(max_tokens=20, min_tokens=20, temperature=0.0)

    assert [list(ids) for ids in token_ids(llm, PROMPTS, forced)] == expected


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 1},
        {"max_num_batched_tokens": 8},
        {"num_blocks": 7},
        {"enable_prefix_caching": False},
        {"block_size": 4, "num_blocks": 256},
    ],
)
def test_limits_change_no_token(llm: LLM, folder: Path, options: dict[str, Any]) -> None:
    other = LLM(str(folder), **{**SMALL, **options})

    assert token_ids(other, PROMPTS, GREEDY) == token_ids(llm, PROMPTS, GREEDY)


def test_memory_for_few_preempts(folder: Path) -> None:
    tight = LLM(str(folder), **{**SMALL, "num_blocks": 7})
    tight.generate(PROMPTS, GREEDY)

    assert sum(tight.engine.metrics.counters.preemptions.values()) > 0


def test_a_seed_fixes_the_tokens_whatever_runs_beside(llm: LLM) -> None:
    seeded = SamplingParams(max_tokens=12, seed=42, ignore_eos=True)
    other = SamplingParams(max_tokens=12, seed=43, ignore_eos=True)
    free = SamplingParams(max_tokens=12, ignore_eos=True)

    (alone,) = token_ids(llm, "abc", seeded)
    first, twin, second, *unseeded = token_ids(llm, ["abc"] * 5, [seeded, seeded, other, free, free])

    assert alone == first == twin
    assert len({alone, second, *unseeded}) == 4


def test_two_engines_with_one_seed_make_the_same_and_write_the_same(folder: Path, tmp_path: Path) -> None:
    def run(name: str, seed: int) -> tuple[list[tuple[int, ...]], bytes]:
        path = tmp_path / name
        with LLM(str(folder), **SMALL, seed=seed, trace=str(path)) as model:
            made = token_ids(model, PROMPTS, SamplingParams(max_tokens=9, stop=("e",)))
        return made, path.read_bytes()

    first = run("first", 1)

    assert run("second", 1) == first
    assert run("third", 2)[0] != first[0]
    header = TraceReader(tmp_path / "third").header
    assert (header.run["seed"], header.cache.num_blocks, header.scheduler.max_model_len) == (2, 64, 256)


def test_logprobs_name_the_tokens_they_belong_to(llm: LLM) -> None:
    (output,) = llm.generate("Hello", SamplingParams(max_tokens=5, temperature=0.0, logprobs=2, prompt_logprobs=0))

    completion = output.outputs[0]
    assert completion.logprobs is not None
    assert output.prompt_logprobs is not None
    assert [record.token for record in completion.logprobs if record is not None] == list(completion.token_ids)
    assert all(record is not None and record.rank == 1 and len(record.top) == 2 for record in completion.logprobs)
    assert output.prompt_logprobs[0] is None
    found = [record.token for record in output.prompt_logprobs[1:] if record is not None]
    assert found == list(output.prompt_token_ids[1:])


def test_a_stream_of_real_tokens_joins_to_the_text(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=60, seed=5, ignore_eos=True)

    (whole,) = llm.generate("€", sampling)
    pieces = [update.text for _, update in llm.stream("€", sampling)]

    tokenizer = llm.engine.tokenizer
    assert tokenizer is not None
    assert "".join(pieces) == whole.text == tokenizer.decode(whole.outputs[0].token_ids)
    assert "\ufffd" in whole.text, "random bytes are rarely characters"


def test_chat_and_empty_prompts(llm: LLM) -> None:
    (answer,) = llm.chat([{"role": "user", "content": "hi"}], GREEDY)
    (empty,) = llm.generate("", GREEDY)

    assert answer.prompt == "user: hi\nassistant: "
    assert empty.prompt_token_ids == (BOS,)
    assert len(empty.outputs[0].token_ids) == 20


def test_the_executor_times_its_parts(llm: LLM) -> None:
    llm.generate("x", GREEDY)

    phases = llm.engine.metrics.histograms.phase_s
    assert phases["forward"].count == phases["sample"].count == phases["build"].count == phases["update"].count > 0


def test_limits_are_said_at_start(folder: Path) -> None:
    said: list[str] = []

    engine = build_engine(EngineOptions(model=str(folder), **SMALL), say=said.append)

    assert tuple(said) == engine.limits
    text = "\n".join(said)
    for part in ("weights in float32", "kernels: ", "64 blocks of 16 tokens", "(as asked for)", "256 tokens", "255"):
        assert part in text


def test_swap_space_is_said_at_start(folder: Path) -> None:
    without = build_engine(EngineOptions(model=str(folder), **SMALL))
    engine = build_engine(EngineOptions(model=str(folder), **SMALL, swap_space_gib=0.001, victim="cheapest"))

    assert "preempted requests: computed again (no swap space)" in without.limits
    assert (
        "preempted requests: swapped or computed again, whichever costs less; swap space: 131 blocks of 16 tokens in"
        " host memory, 1 MiB reserved, 0 MiB resident at start"
    ) in engine.limits
    config, cache = engine.scheduler.config, engine.scheduler.cache
    assert (config.preemption_mode, config.victim, cache.num_host_blocks) == ("auto", "cheapest", 131)


def test_engines_may_share_a_model_in_memory(folder: Path, llm: LLM) -> None:
    options = EngineOptions(model=str(folder), **SMALL)
    loaded = load_model(options)
    small = dataclasses.replace(options, num_blocks=7, block_size=8)

    engines = [OfflineLLM(build_engine(each, loaded=loaded)) for each in (options, small)]

    expected = token_ids(llm, PROMPTS, GREEDY)
    assert [token_ids(each, PROMPTS, GREEDY) for each in engines] == [expected, expected]  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be 'auto', as when the model was loaded") as caught:
        build_engine(dataclasses.replace(options, kernels="torch"), loaded=loaded)
    assert caught.value.field == "kernels"


def test_the_model_length_is_what_the_blocks_hold_if_that_is_less(folder: Path) -> None:
    model = LLM(str(folder), num_blocks=5, max_num_seqs=4)

    assert model.engine.scheduler.config.max_model_len == 80
    with pytest.raises(PromptRefused, match="at most 79"):
        model.generate("x" * 79)


def test_blocks_are_sized_by_memory(folder: Path) -> None:
    by_need = LLM(str(folder), max_num_seqs=4)
    by_memory = LLM(str(folder), max_num_seqs=4, kv_cache_memory_gib=0.001)

    assert by_need.engine.scheduler.cache.num_blocks == 4 * 16
    # two layers of 2 heads x 16 tokens x 16 floats, keys and values
    assert by_memory.engine.scheduler.cache.num_blocks == int(0.001 * 2**30) // (2 * 2 * 2 * 16 * 16 * 4) - 1


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"max_num_seq": 4}, "max_num_seq", "did you mean max_num_seqs?"),
        ({"nonsense": 4}, "nonsense", "there is no such option"),
        ({"max_model_len": 257}, "max_model_len", "at most 256"),
        ({"num_blocks": 9, "kv_cache_memory_gib": 1.0}, "kv_cache_memory_gib", "must be none if num_blocks is given"),
        ({"kv_cache_memory_gib": 1e-6}, "kv_cache_memory_gib", "two blocks at least"),
        ({"max_num_seqs": 8, "max_num_batched_tokens": 4}, "max_num_batched_tokens", "at least max_num_seqs"),
        ({"weight_dtype": "int4"}, "weight_dtype", "must be one of"),
        ({"block_size": 0}, "block_size", "at least 1"),
        ({"swap_space_gib": -1.0}, "swap_space_gib", "at least 0.0 GiB"),
        ({"swap_space_gib": 1e-9}, "swap_space_gib", "must hold a block at least, 8192 bytes"),
        ({"swap_space_gib": 1e9, **SMALL}, "swap_space_gib", "bytes in host memory, where"),
        ({"preemption_mode": "swap"}, "swap_space_gib", "must be above 0 with preemption_mode swap"),
        (
            {"preemption_mode": "recompute", "swap_space_gib": 1.0},
            "swap_space_gib",
            "has no effect with preemption_mode recompute",
        ),
        ({"preemption_mode": "drop"}, "preemption_mode", "must be one of"),
        ({"ageing_s": 3.0}, "ageing_s", "has no effect with policy fcfs"),
        ({"trace": "/no/such/folder/trace.jsonl", **SMALL}, "trace", "there is no such folder"),
    ],
)
def test_options_that_cannot_be_used_are_named(folder: Path, options: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        LLM(str(folder), **options)

    assert caught.value.field == field


def test_a_gpu_that_is_not_there_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(ConfigError, match="needs a GPU"):
        LLM(str(folder), device="cuda")


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(ModelNotFound):
        LLM("no-such-model")


def test_a_model_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="must name a model"):
        EngineOptions(model="")


def test_options_shared_with_the_scheduler_are_declared_once() -> None:
    options = EngineOptions(model="m", watermark=0.1, scheduling_policy="priority", block_size=8)

    scheduler, cache = options.scheduler_config(99), options.cache_config(7)

    assert (scheduler.max_model_len, scheduler.watermark, scheduler.scheduling_policy) == (99, 0.1, "priority")
    assert (cache.num_blocks, cache.block_size) == (7, 8)
    with pytest.raises(ConfigError, match=r"at most 0\.99"):
        EngineOptions(model="m", watermark=1.0)


def test_importing_headway_is_cheap_and_its_names_come_when_used() -> None:
    code = (
        "import sys, headway\n"
        "assert not {'torch', 'numpy', 'transformers'} & set(sys.modules), 'heavy'\n"
        "from headway import SamplingParams\n"
        "assert 'torch' not in sys.modules\n"
        "print(headway.LLM.__module__, SamplingParams(max_tokens=3).max_tokens)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (answer.stdout, answer.stderr) == ("headway.build 3\n", "")
    assert headway.RequestOutput.__module__ == "headway.engine.outputs"
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = headway.Nonsense
