"""The pure part of Headway - config, kv, core, sim - needs NumPy and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]

WORKLOAD = """
import sys

sys.path.insert(0, sys.argv[1])
from headway.config import CacheConfig, SamplingParams, SchedulerConfig
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from headway.sim.fake import FakeExecutor

try:
    import torch
except ImportError:
    pass
else:
    sys.exit("torch can be imported here, so this proves nothing")

limits = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64)
scheduler = Scheduler(limits, CacheConfig(block_size=4, num_blocks=24))
executor = FakeExecutor(block_size=4)
for index in range(8):
    prompt = [7, 7, 7, 7, 7, index]
    scheduler.add(Request(f"r{index}", prompt, SamplingParams(max_tokens=9, ignore_eos=True)), 0.0)
delivered = 0
for step in range(200):
    if not scheduler.has_unfinished:
        break
    plan = scheduler.schedule(float(step))
    executor.submit(plan)
    delivered += int(scheduler.update(plan, executor.collect(), float(step)).counts.sum())
    scheduler.check_invariants()
print("delivered", delivered)
"""

LOADED = """
import sys

sys.path.insert(0, sys.argv[1])
import headway.config, headway.core, headway.core.scheduler, headway.kv, headway.sim
heavy = {"torch", "transformers", "tokenizers", "rich", "typer"}
print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""


def run(python: Path, code: str) -> str:
    """Output of ``code`` in a process of its own, which is given the folder of the sources."""
    command = [str(python), "-I", "-c", code, str(ROOT / "src")]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that has NumPy alone (linked to, so that no network is needed)."""
    folder = tmp_path_factory.mktemp("bare")
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    python = folder / "bin" / "python"
    site = Path(run(python, "import sysconfig; print(sysconfig.get_path('purelib'))"))
    numpy_folder = Path(np.__file__).parent
    for part in (numpy_folder, numpy_folder.with_name("numpy.libs")):
        if part.exists():
            (site / part.name).symlink_to(part)
    return python


def test_pure_part_schedules_with_numpy_alone(bare_python: Path) -> None:
    assert run(bare_python, WORKLOAD) == "delivered 72"


def test_pure_part_loads_nothing_heavy_where_all_is_installed() -> None:
    assert run(Path(sys.executable), LOADED) == "[]"


def test_numpy_is_the_only_required_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert [name.partition(">")[0] for name in project["dependencies"]] == ["numpy"]
