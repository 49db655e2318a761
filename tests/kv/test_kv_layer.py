"""The KV layer as a package."""

from __future__ import annotations

import subprocess
import sys

import headway.kv


def test_public_names_are_sorted_and_exist() -> None:
    assert headway.kv.__all__ == sorted(headway.kv.__all__)
    assert all(hasattr(headway.kv, name) for name in headway.kv.__all__)


def test_importing_it_brings_in_neither_torch_nor_the_core() -> None:
    code = "import sys, headway.kv; print([name for name in ('torch', 'headway.core') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
