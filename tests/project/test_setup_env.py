"""The set-up must not pull CUDA libraries onto a machine that serves from its CPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def setup_env(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_env", ROOT / "scripts" / "setup_env.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "has_torch", lambda: False)
    monkeypatch.delenv("HEADWAY_PIP_ARGS", raising=False)
    monkeypatch.delenv("HEADWAY_ALLOW_CUDA", raising=False)
    return module


def answer_with(monkeypatch: pytest.MonkeyPatch, names: list[str], returncode: int = 0) -> list[list[str]]:
    """Let pip report that it would install ``names``; returns the commands it is given."""
    commands: list[list[str]] = []
    report = json.dumps({"install": [{"metadata": {"name": name}} for name in names]})

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, returncode, report, "no such version")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_a_cuda_build_is_refused_with_a_way_out(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, ["torch", "nvidia-cublas", "Triton", "sympy"])

    with pytest.raises(setup_env.SetupError, match=r"2 packages, nvidia-cublas, triton .*HEADWAY_PIP_ARGS"):
        setup_env.refuse_cuda()


def test_a_cpu_build_is_taken(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_PIP_ARGS", "--find-links 'my wheels'")
    commands = answer_with(monkeypatch, ["torch", "sympy", "jinja2"])

    setup_env.refuse_cuda()

    [command] = commands
    assert "--dry-run" in command
    assert command[-1].startswith("torch==")
    assert command[command.index("--find-links") + 1] == "my wheels"


def test_cuda_can_be_taken_on_purpose(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_ALLOW_CUDA", "1")
    commands = answer_with(monkeypatch, ["torch", "nvidia-cublas"])

    setup_env.refuse_cuda()

    assert commands == []


def test_a_missing_torch_says_so(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, [], returncode=1)

    with pytest.raises(setup_env.SetupError, match=r"pip found no torch==[^:]*:\s+no such version"):
        setup_env.refuse_cuda()


def test_constraints_cover_every_direct_dependency_once(setup_env: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    lines = setup_env.CONSTRAINTS.read_text().splitlines()
    pinned = [line.partition("==")[0] for line in lines if line and not line.startswith("#")]

    assert pinned == sorted(name.partition(">")[0] for name in wanted)
