"""What the process of an engine takes: little at start, what requests use, and no more for what is written again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headway import build
from headway.build import LLM
from headway.config import ConfigError, EngineOptions
from headway.executor import memory
from tests.engine.tiny_model import write_tiny_model

MIB = 2**20
RESERVED_GIB = 2
BLOCK_MIB = 1
"""A block of 16 tokens of 64 KiB."""

LIVE = """
import json, sys
from pathlib import Path
from headway import LLM, SamplingParams
from headway.build import load_model
from headway.config import EngineOptions

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

def measure(llm):
    pool, use = llm.engine.scheduler.kv.pool, llm.engine.memory_use()
    seen.append({"process": resident(), "kv": use.kv_resident_bytes, "touched": pool.num_touched})

def prompts(first):
    return [[number] * 30 + [17, number] * 100 for number in range(first, first + 8)]

folder, options = sys.argv[1], json.loads(sys.argv[2])
params = SamplingParams(max_tokens=10, temperature=0.0, ignore_eos=True)
load_model(EngineOptions(model=folder))  # libraries are loaded, and the allocator has what it needs
seen = []
llm = LLM(folder, **options)
llm.engine.memory_use()
measure(llm)
for work in ([[1] * 12], prompts(10), prompts(20), prompts(30)):
    llm.generate(work, params)
    measure(llm)
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose KV is much larger than all the rest."""
    folder = tmp_path_factory.mktemp("wide")
    return write_tiny_model(folder, num_attention_heads=32, num_key_value_heads=32, head_dim=128)


@pytest.fixture(scope="module", params=[True, False], ids=["cached", "uncached"])
def live(folder: Path, request: pytest.FixtureRequest) -> tuple[bool, list[dict[str, int]]]:
    """Whether prefixes are cached; what was seen after start, a short request, and three times eight long ones."""
    options = {
        "kv_cache_memory_gib": RESERVED_GIB,
        "max_num_seqs": 8,
        "enable_prefix_caching": request.param,
        "weight_dtype": "float32",
    }
    answer = subprocess.run(
        [sys.executable, "-c", LIVE, str(folder), json.dumps(options)], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return request.param, json.loads(answer.stdout)


def test_memory_follows_use(live: tuple[bool, list[dict[str, int]]]) -> None:
    cached, seen = live
    start, short, *long = seen

    assert (start["kv"], start["touched"]) == (0, 0)
    assert start["process"] < 512 * MIB, "far from the 2 GiB reserved"
    assert short["touched"] == 2
    for now in (short, *long):
        grown = now["process"] - start["process"]
        written = now["touched"] * BLOCK_MIB * MIB
        assert written <= now["kv"] <= written + 8 * MIB, "in whole pages of each layer, and the null block"
        assert now["kv"] - 4 * MIB <= grown <= now["kv"] + 300 * MIB, "and what a step needs besides"
    touched = [now["touched"] for now in long]
    # 240 tokens are 15 blocks, the last of them not full when they end, so it is not cached.
    if cached:
        assert touched[1] - touched[0] >= 8 * 14 - 8 and touched[2] - touched[1] >= 8 * 14 - 8
    else:
        assert touched == [8 * 15] * 3, "what was written is written again"


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """What is free; to be set."""
    bytes_ = [100 * MIB]
    for module in (build, memory):
        monkeypatch.setattr(module, "available_bytes", lambda device: bytes_[0])
    yield bytes_


def blocks(folder: Path, **options: Any) -> int:
    """Blocks that an engine makes of what is free."""
    llm = LLM(str(folder), weight_dtype="float32", **options)
    return llm.engine.scheduler.cache.num_blocks


def test_unasked_two_fifths_of_what_is_free_are_reserved(folder: Path, free: list[int]) -> None:
    assert blocks(folder) == 39  # and the null block
    free[0] = 200 * MIB
    assert blocks(folder) == 79


def test_never_more_than_the_requests_could_use(folder: Path, free: list[int]) -> None:
    free[0] = 2**40

    assert blocks(folder, max_num_seqs=2) == 2 * 16
    assert blocks(folder, max_num_seqs=2, max_model_len=100) == 2 * 7


def test_never_more_than_the_limit(folder: Path, free: list[int]) -> None:
    free[0] = 2**40
    options = EngineOptions(model=str(folder), max_num_seqs=10_000, max_num_batched_tokens=10_000)
    loaded = build.load_model(options)

    sizes = build._size(options, loaded.model)

    assert sizes.cache.num_blocks == 8 * 1024 - 1
    assert sizes.why_blocks == "what fits into 8,192 MiB, the most that is taken unasked"


def test_the_start_says_what_is_reserved_and_what_is_resident(folder: Path, free: list[int]) -> None:
    llm = LLM(str(folder), swap_space_gib=4 / 1024)
    taken = LLM(str(folder), swap_space_gib=4 / 1024, preallocate=True)

    where = "KV memory: 39 blocks of 16 tokens, 40 MiB reserved"
    why = "(what fits into 40 MiB, 40% of the free memory)"
    assert f"{where}, 0 MiB resident at start {why}" in llm.engine.limits
    assert f"{where}, 40 MiB resident at start {why}" in taken.engine.limits
    swapping = [sentence for sentence in taken.engine.limits if "swap space" in sentence]
    assert swapping and swapping[0].endswith("in host memory, 5 MiB reserved, 5 MiB resident at start")
    use = llm.engine.memory_use()
    assert (use.kv_reserved_bytes, use.host_kv_reserved_bytes) == (40 * MIB, 5 * MIB)
    assert (use.kv_resident_bytes, use.host_kv_resident_bytes) == (0, 0)


def test_what_does_not_fit_is_refused_with_both_sizes(folder: Path, free: list[int]) -> None:
    with pytest.raises(ConfigError, match=f"needs {104 * MIB} bytes on cpu, where {100 * MIB} bytes") as refusal:
        blocks(folder, num_blocks=103)
    assert refusal.value.field == "num_blocks"

    with pytest.raises(ConfigError, match=f"needs {61 * MIB} bytes in host memory, where {60 * MIB} bytes") as refusal:
        blocks(folder, swap_space_gib=60 / 1024)
    assert refusal.value.field == "swap_space_gib"


def test_a_gpu_takes_all_memory_at_start_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    with pytest.raises(ConfigError, match="has no effect on a GPU") as refusal:
        build.check_options(EngineOptions(model="any", device="cuda", preallocate=True))

    assert refusal.value.field == "preallocate"
