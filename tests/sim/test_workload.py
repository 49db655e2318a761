"""Workloads: repeatable, of the lengths asked for; public traces are read as they are, and broken ones refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from headway.config import ConfigError
from headway.sim.workload import (
    Arrival,
    LogNormal,
    Uniform,
    WorkloadError,
    make_workload,
    poisson_arrivals,
    read_azure,
    read_mooncake,
    rescaled,
)

MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 52, "hash_ids": [0, 1, 2]},
    {"timestamp": 2500, "input_length": 1024, "output_length": 0, "hash_ids": [0, 7]},
]


def test_poisson_arrivals_come_at_the_rate() -> None:
    times = poisson_arrivals(5.0, 4000, seed=1)

    gaps = np.diff(times)
    assert (gaps > 0).all()
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() == pytest.approx(0.2, rel=0.1)
    assert np.array_equal(times, poisson_arrivals(5.0, 4000, seed=1))
    assert not np.array_equal(times, poisson_arrivals(5.0, 4000, seed=2))


@pytest.mark.parametrize(
    ("lengths", "low", "high", "median"),
    [(Uniform(10, 20), 10, 20, 15), (Uniform(7, 7), 7, 7, 7), (LogNormal(100, 1.0, 900), 1, 900, 100)],
)
def test_lengths_are_as_asked_for(lengths: Uniform | LogNormal, low: int, high: int, median: float) -> None:
    drawn = lengths.draw(np.random.default_rng(3), 5000)

    assert drawn.dtype == np.int32
    assert low <= drawn.min() <= drawn.max() <= high
    assert np.median(drawn) == pytest.approx(median, rel=0.1)


def test_prompts_share_their_prefix_and_nothing_else() -> None:
    work = make_workload(np.zeros(40), Uniform(30, 60), Uniform(5, 9), seed=4, num_prefixes=2, prefix_tokens=16)

    prompts = [arrival.prompt(1000) for arrival in work]
    assert [len(prompt) for prompt in prompts] == [arrival.num_prompt_tokens for arrival in work]
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 2
    assert len({tuple(prompt[16:30]) for prompt in prompts}) == 40
    assert all(5 <= arrival.num_output_tokens <= 9 for arrival in work)
    assert work == make_workload(np.zeros(40), Uniform(30, 60), Uniform(5, 9), seed=4, num_prefixes=2, prefix_tokens=16)


def test_a_request_runs_to_its_length() -> None:
    request = Arrival(1.0, ((3, 5), (4, 2)), 9, priority=2, tenant="t").request("a", 50)

    assert (request.num_prompt_tokens, request.sampling.max_tokens, request.sampling.ignore_eos) == (7, 9, True)
    assert (request.priority, request.tenant) == (2, "t")
    assert request.tokens.max() < 50


def test_rescaling_keeps_who_shares_with_whom() -> None:
    work = [Arrival(10.0, ((3, 512), (9, 100)), 40), Arrival(20.0, ((3, 512), (8, 1)), 1)]

    first, second = rescaled(work, speed=2.0, tokens=0.125)

    assert (first.arrival_s, second.arrival_s) == (5.0, 10.0)
    assert (first.segments, second.segments) == (((3, 64), (9, 12)), ((3, 64), (8, 1)))
    assert (first.num_output_tokens, second.num_output_tokens) == (5, 1)


def test_mooncake_traces_share_by_hash_id(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in MOONCAKE))

    first, second = read_mooncake(path)

    assert (first.arrival_s, second.arrival_s) == (0.0, 2.5)
    assert (first.segments, second.segments) == (((0, 512), (1, 512), (2, 76)), ((0, 512), (7, 512)))
    assert (first.num_output_tokens, second.num_output_tokens) == (52, 1)
    one, other = first.prompt(30000), second.prompt(30000)
    assert np.array_equal(one[:512], other[:512])
    assert not np.array_equal(one[512:1024], other[512:1024])
    assert read_mooncake(path, limit=1) == [first]


def test_azure_traces_are_read_as_published_and_with_seconds(tmp_path: Path) -> None:
    published = tmp_path / "azure.csv"
    published.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
    )
    seconds = tmp_path / "azure.csv.gz"
    seconds.write_bytes(gzip.compress(b"arrival_s,input_tokens,output_tokens\n0.5,374,44\n4.815,396,109\n"))

    for path in (published, seconds):
        first, second = read_azure(path)
        assert (first.arrival_s, second.arrival_s) == (0.0, pytest.approx(4.315, abs=1e-3))
        assert (first.num_prompt_tokens, second.num_output_tokens) == (374, 109)
        assert first.segments[0][0] != second.segments[0][0]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"timestamp": 0}\n', 1),
        (json.dumps(MOONCAKE[0]) + "\nnonsense\n", 2),
        (json.dumps({**MOONCAKE[0], "hash_ids": [1]}) + "\n", 1),
        ("[]\n", 1),
    ],
)
def test_broken_mooncake_lines_are_named(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)

    with pytest.raises(WorkloadError, match=f"workload line {line}: not a request of a Mooncake") as error:
        read_mooncake(path)

    assert error.value.line == line


@pytest.mark.parametrize(
    ("text", "line"), [("", 1), ("a,b,c\n", 1), ("arrival_s,input_tokens,output_tokens\n1.0,2\n", 2)]
)
def test_broken_azure_lines_are_named(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)

    with pytest.raises(WorkloadError) as error:
        read_azure(path)

    assert error.value.line == line


def test_impossible_distributions_are_refused() -> None:
    with pytest.raises(ConfigError, match="low"):
        Uniform(9, 3)
    with pytest.raises(ConfigError, match="median"):
        LogNormal(100, 1.0, 50)
    with pytest.raises(ConfigError, match="rate_per_s"):
        poisson_arrivals(0.0, 3, seed=0)
