"""The benchmarks of the server measure what they say, and see what goes wrong; how fast anything is, is not tested."""

from __future__ import annotations

import asyncio
import importlib
import json
import mmap
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.engine.builders import ScriptedExecutor, echo
from tests.engine.tiny_model import write_tiny_model
from tests.server.running import serving

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_all_tokens_of_all_streams_are_counted(load: Any) -> None:
    bench, client = load("http_overhead"), load("http_client")
    with serving(max_num_seqs=4) as server:
        process = client.ServerProcess(int(server.url.rpartition(":")[2]), os.getpid())
        requests = [client.post("/v1/completions", {"prompt": "abc", "max_tokens": 7, "stream": True})] * 6
        streams = asyncio.run(client.run_streams(process.port, requests))
        turn = bench.http_turn(process, ["abc", "de"], 9)
        server.rest()

    texts = [b"".join(re.findall(rb'"text":"(.*?)"', stream.body)) for stream in streams]
    assert texts == [b"abcabca"] * 6
    assert all(stream.status == 200 and stream.ended and not stream.left for stream in streams)
    assert all(stream.begin_s < stream.first_s <= stream.end_s for stream in streams)
    assert turn.tokens_per_second > 0 and turn.ttft_s > 0


def test_a_stream_that_fails_ends_the_benchmark(load: Any) -> None:
    bench, client = load("http_overhead"), load("http_client")

    def fail(plan: Any) -> None:
        raise RuntimeError("out of luck")

    with serving(ScriptedExecutor(echo, before=fail)) as server:
        process = client.ServerProcess(int(server.url.rpartition(":")[2]), os.getpid())
        with pytest.raises(SystemExit, match="a stream failed"):
            bench.http_turn(process, ["abc"], 9)
        server.rest()


def test_a_soak_counts_every_outcome_and_leaves_nothing_behind(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    soak, client = load("soak"), load("http_client")
    monkeypatch.setattr(soak, "FORMS", ({"stop": "q"},))
    limits = {"max_num_seqs": 4, "max_num_queued_reqs": 5, "max_model_len": 1200, "num_blocks": 400}
    with serving(ScriptedExecutor(echo), **limits) as server:
        process = client.ServerProcess(int(server.url.rpartition(":")[2]), os.getpid())
        server.service.engine.snapshot_age_s = -1.0
        before = soak.rest(process.port, soak.state(process.port))
        tally = asyncio.run(soak.run(process, 8, 3.0, 1))
        after = soak.rest(process.port, before)
        server.rest()

    assert set(before) == {"running", "waiting", "counted by admission", "open calls", "tasks", "blocks held"}
    assert soak.judge(tally, before, after, check_memory=False) == []
    assert {"ended", "left", "turned away"} <= set(tally.counts)


def test_a_soak_says_what_is_wrong(load: Any) -> None:
    soak = load("soak")
    tally = soak.Tally(counts=Counter({"ended": 5, "left": 1, "failed": 1}), problem="failed: status 500")
    tally.memory = [(float(second), (100 + 2 * second) * soak.MIB) for second in range(40)]
    state = {"blocks held": 0.0, "tasks": 4.0}

    wrong = soak.judge(tally, state, {"blocks held": 2.0, "tasks": 4.0}, check_memory=True)

    assert wrong == [
        "failed: status 500",
        "blocks held: 0 before, 2 after",
        "memory grew from 129 to 169 MiB",
        "the load was none: not every outcome was seen",
    ]


def test_memory_is_seen_at_every_stage(load: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = load("memory")
    model = write_tiny_model(tmp_path)

    bench.main(["--model", str(model), "--requests", "2", "--prompt-tokens", "50", "--outputs", "4", "--only", "pair"])
    offline = bench.offline_figures(str(model), bench.Work(2, 50, 4))

    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(figures["pair"]) == {"start", "taken", "short"}
    assert 100 < figures["pair"]["start"] <= figures["pair"]["short"] < 10_000
    assert figures["num_requests"] == 2
    assert set(offline) == set(bench.STAGES)
    assert 0 < offline["start"] <= offline["long"]


def test_a_process_is_watched_until_the_end(load: Any) -> None:
    bench = load("memory")

    # Fresh pages, written to: what an allocator hands out may be there already, or not be there before its first use.
    with bench.watching(os.getpid()) as seen, mmap.mmap(-1, 64 * bench.MIB) as held:
        held.write(b"x" * len(held))
        time.sleep(4 * bench.SAMPLE_S)

    assert max(seen) - seen[0] > 32
    assert len({tuple(prompt[:3]) for prompt in bench.Work(64, 5, 1).prompts()}) == 64
