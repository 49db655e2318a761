"""``headway bench``: runs the benchmarks of a checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import headway
from headway.config import ConfigError

BENCHMARKS = {"scheduler": "scheduler_overhead.py", "engine": "engine.py", "preemption": "preemption.py"}


def bench(
    context: typer.Context,
    which: Annotated[
        str, typer.Argument(metavar="|".join(BENCHMARKS), help="The scheduler, the whole engine, or memory pressure.")
    ],
) -> None:
    """Run a benchmark of this checkout.

    What follows its name goes to it; its own options are shown by: headway bench NAME -- --help
    """
    if which not in BENCHMARKS:
        raise ConfigError("bench", which, f"must be one of {', '.join(BENCHMARKS)}")
    script = benchmarks_folder() / BENCHMARKS[which]
    if not script.is_file():
        typer.echo(
            f"headway: the benchmarks are not part of the installed package. Get the source of headway"
            f" {headway.__version__} and run benchmarks/{script.name} there.",
            err=True,
        )
        raise typer.Exit(2)
    raise typer.Exit(subprocess.run([sys.executable, str(script), *context.args], check=False).returncode)


def benchmarks_folder() -> Path:
    """Where the benchmarks lie if this is a checkout."""
    return Path(headway.__file__).resolve().parents[2] / "benchmarks"
