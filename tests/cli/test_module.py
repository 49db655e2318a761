"""``python -m headway`` is the command."""

from __future__ import annotations

import subprocess
import sys

import headway


def test_the_package_runs_as_a_module() -> None:
    run = subprocess.run([sys.executable, "-m", "headway", "version"], check=True, capture_output=True, text=True)
    assert run.stdout == f"headway {headway.__version__}\n"

    help_text = subprocess.run([sys.executable, "-m", "headway", "-h"], check=True, capture_output=True, text=True)
    assert help_text.stdout.startswith("Usage: python -m headway ")
