"""The benchmarks measure what they say; how fast anything is, is not tested."""

from __future__ import annotations

import gzip
import importlib
import json
import time
from pathlib import Path
from types import ModuleType

import pytest

from headway.engine.llm import OfflineLLM
from tests.engine.builders import ScriptedExecutor, echo, make_engine

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def by_words(text: str) -> list[int]:
    """A tokenizer good enough to cut by."""
    return [len(word) for word in text.split()]


def test_engine_work_has_the_stated_lengths(load) -> None:
    module: ModuleType = load("engine_work")

    work = module.make_work(by_words)

    assert [len(prompt) for prompt in work.main] == list(module.MAIN_LENGTHS)
    assert sum(module.MAIN_LENGTHS) == 17_563
    assert (len(work.long), len(work.single)) == (2000, 64)
    assert {len(prompt) for prompt in work.shared} == {1056}
    assert len({tuple(prompt[:1024]) for prompt in work.shared}) == 1
    assert [len(prompt) for prompt in work.warm] == [100] * 4


def test_engine_work_is_the_same_each_time(load) -> None:
    module: ModuleType = load("engine_work")

    assert module.make_work(by_words) == module.make_work(by_words)


def test_engine_work_can_be_read_from_a_file(load, tmp_path: Path) -> None:
    module: ModuleType = load("engine_work")
    made = module.make_work(by_words)
    content = {
        "main": {"max_tokens": 128, "prompts": made.main},
        "shared": {"max_tokens": 32, "prefix_len": 1024, "prompts": made.shared},
        "single": {"max_tokens": 128, "prompt": made.single},
        "ttft2000": {"prompt": made.long},
        "warm": {"prompts": made.warm},
    }
    file = tmp_path / "work.json.gz"
    file.write_bytes(gzip.compress(json.dumps(content).encode()))

    read = module.read_work(file)

    assert read.source == "work.json.gz"
    assert (read.main, read.shared, read.single, read.long) == (made.main, made.shared, made.single, made.long)


def test_scheduler_bench_measures_steady_decode_only(load) -> None:
    work, overhead = load("scheduler_work"), load("scheduler_overhead")

    figures = work.measure_steady(overhead.HeadwayBench(work.steady_limits(8, num_groups=2)), 8, num_steps=20)

    assert figures["num_steps"] == 20
    assert 0 < figures["median_us"] <= figures["p90_us"]


def test_scheduler_churn_exercises_what_it_should(load) -> None:
    work, overhead = load("scheduler_work"), load("scheduler_overhead")

    figures = work.measure_churn(overhead.HeadwayBench(work.CHURN_LIMITS), num_steps=100)

    assert figures["preemptions"] > 0
    assert figures["cached_tokens"] > figures["arrivals"] * work.PREFIX_TOKENS // 2
    assert figures["finished"] > 100
    assert work.CHURN_LIMITS.max_num_seqs // 2 < figures["mean_rows"] <= work.CHURN_LIMITS.max_num_seqs


def test_engine_bench_measures_every_figure(load) -> None:
    engine, engine_work = load("engine"), load("engine_work")
    limits = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "max_model_len": 2304, "num_blocks": 2048}
    llm = OfflineLLM(make_engine(ScriptedExecutor(echo), clock=time.perf_counter, **limits))
    work = engine_work.make_work(engine.encoder(llm)).shortened()
    bench = engine.EngineBench(llm, work)

    figures = [bench.single(), bench.ttft(), bench.main(), bench.shared()]

    assert all(figure > 0 for figure in figures)
    assert list(bench.measured) == list(engine.MEASUREMENTS)
    assert bench.measured["single"].phases["schedule"][0] == work.single_outputs
    assert [output.metrics.num_cached_tokens for output in bench.measured["ttft"].outputs] == [0]
    assert sum(output.metrics.num_cached_tokens for output in bench.measured["shared"].outputs) == 15 * 1024


def test_engine_bench_names_every_peer_figure(load) -> None:
    engine: ModuleType = load("engine")

    assert {len(figures) for figures in engine.PEERS.values()} == {len(engine.FIGURES)}
    assert engine.BARS.keys() < engine.FIGURES.keys()
