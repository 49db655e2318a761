"""Which kernels are chosen, and what happens where the native ones cannot be built."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headway.config import ConfigError
from headway.models.native import build
from headway.models.native.build import NativeBuildError, library_path
from headway.models.native.library import native_library
from headway.models.ops.registry import KERNELS_VARIABLE, select_ops


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without one, in a process that has not loaded the kernels yet."""
    native_library()  # so that its threads are set up; the next call would build again
    monkeypatch.setattr("headway.models.ops.registry.native_library", native_library.__wrapped__)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)


def test_native_is_the_default_on_the_cpu_and_says_so() -> None:
    ops = select_ops("cpu")
    assert ops.name == "native"
    assert ops.describe() == f"kernels: native on cpu, {ops.num_threads} threads (built for this machine)"
    assert select_ops("cpu", "torch").describe().startswith("kernels: torch on cpu, ")


def test_the_environment_forces_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNELS_VARIABLE, "torch")
    assert select_ops("cpu", "native").name == "torch"
    monkeypatch.setenv(KERNELS_VARIABLE, "fast")
    with pytest.raises(ConfigError, match=r"kernels='fast' .* one of auto, native, torch"):
        select_ops("cpu")


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_torch_takes_over_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ops = select_ops("cpu")
    assert ops.name == "torch"
    assert "Native kernels are not available, running on plain torch" in caplog.text
    assert "no C++ compiler found (looked for g++, clang++, c++)" in caplog.text
    assert "no C++ compiler found" in ops.describe()
    with pytest.raises(ConfigError, match=r"kernels='native' .* no C\+\+ compiler found"):
        select_ops("cpu", "native")


def test_a_failing_compiler_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho no space for objects >&2\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(NativeBuildError, match=r"c\+\+ failed: no space for objects"):
        library_path()
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_an_unwritable_cache_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(NativeBuildError, match="cannot write the built library"):
        library_path()


def test_the_library_is_built_once_per_source_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    built = library_path()
    monkeypatch.setattr(build, "_compile", None)  # a second build would call it
    assert library_path() == built
    monkeypatch.setattr(build, "processor_features", lambda: "another machine")
    with pytest.raises(TypeError):
        library_path()


def test_threads_are_torch_s_and_torch_keeps_one() -> None:
    """In a process of its own, because the kernels are loaded once."""
    code = (
        "import torch; torch.set_num_threads(3)\n"
        "from headway.models.ops.registry import select_ops\n"
        "print(select_ops('cpu').num_threads, torch.get_num_threads(), select_ops('cpu').num_threads)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "1", "3"]


def test_the_number_of_threads_does_not_change_a_result() -> None:
    library, ops = native_library(), select_ops("cpu", "native")
    linear = ops.make_linear(torch.randn(300, 200), None, "float16")
    x, before = torch.randn(150, 200), library.num_threads
    results = []
    for num_threads in (1, 2, 5, 1, before):
        library.num_threads = num_threads
        results.append(linear(x))
    assert all(torch.equal(results[0], result) for result in results)
