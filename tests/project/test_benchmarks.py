"""The benchmarks measure what they say; how fast anything is, is not tested."""

from __future__ import annotations

import dataclasses
import gzip
import importlib
import json
import time
from pathlib import Path
from types import ModuleType

import pytest

from headway.build import load_model
from headway.config import EngineOptions
from headway.engine.llm import OfflineLLM
from headway.models.tiny import make_tiny
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


def test_preemption_bench_compares_modes_in_virtual_time(load) -> None:
    module: ModuleType = load("preemption")

    bench = module.VirtualBench("2 CPU cores, 135M", 30)
    outcomes, knobs = bench.modes(), bench.knobs()

    assert tuple(outcomes.pools) == module.POOLS
    wide, narrow = outcomes.pools[100], outcomes.pools[15]
    assert len({one.throughput_tok_s for one in wide.values()}) == 1
    assert narrow["recompute"].recomputed_tokens > 0 == narrow["swap"].recomputed_tokens
    assert narrow["swap"].swap_bytes > 0 == narrow["recompute"].swap_bytes
    assert outcomes.auto_share[15] == narrow["auto"].throughput_tok_s / narrow["swap"].throughput_tok_s
    assert list(knobs) == list(module.KNOBS)
    assert knobs["defaults"]["no swap space"] == outcomes.pools[30]["recompute"]
    assert sum(knobs["reservation all"]["no swap space"].preemptions.values()) == 0


def test_preemption_bench_takes_each_step_at_its_fastest(load) -> None:
    module: ModuleType = load("preemption")
    work = module.RealWork([[1], [2]], 10)
    turns = [
        module.Turn([(2, 40), (2, 2), (2, 2)], [3.0, 1.0, 2.0], [1, 2]),
        module.Turn([(2, 40), (1, 9)], [2.0, 4.0], [0, 1]),
    ]

    outcome = module.undisturbed(turns[0], module.fastest_steps(turns), work)

    assert (outcome.throughput_tok_s, outcome.p50_s) == (20 / 4.0, 3.5)
    outcomes = module.Outcomes()
    outcomes.add(
        30,
        {
            mode: dataclasses.replace(outcome, throughput_tok_s=value)
            for mode, value in zip(module.MODES, (8.0, 10.0, 9.0), strict=True)
        },
    )
    assert outcomes.auto_share == {30: 0.9}


def test_preemption_bench_runs_a_model_draws_and_sums_up(load, tmp_path: Path) -> None:
    module, plot = load("preemption"), load("preemption_plot")
    loaded = load_model(EngineOptions(model=str(make_tiny(tmp_path / "tiny"))))
    work = module.RealWork([[place + number for place in range(40)] for number in range(1, 9)], 24)

    real = module.run_real(loaded, work, 1)
    target = plot.draw_pressure({"tiny": real.pools}, tmp_path / "out")
    line = json.loads(json.dumps(module.summary("tiny", real, {"same": real})))

    assert target.stat().st_size > 10_000
    assert (work.need, work.largest) == (8 * 4, 5)
    assert list(line["throughput_tok_s"]) == ["100", "60", "30", "15"]
    assert all(list(modes) == list(module.MODES) for modes in line["throughput_tok_s"].values())
    assert real.pools[30]["swap"].preemptions["swap"] > 0
    assert real.pools[30]["swap"].swap_bytes > 0
    assert real.pools[100]["recompute"].preemptions == {"recompute": 0, "swap": 0}
