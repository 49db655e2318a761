"""The picture of ``preemption.py``: throughput, tail latency and waste by pool size, one column per machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {"recompute": "#c44e52", "swap": "#4c72b0", "auto": "#55a868"}
ROWS = (
    ("output tokens/s", "throughput_tok_s", 1.0),
    ("latency, 99th percentile [s]", "p99_s", 1.0),
    ("recomputed tokens", "recomputed_tokens", 1.0),
    ("copied [MiB]", "swap_bytes", 1 / 2**20),
)
"""Label, attribute of an outcome, factor."""


def draw_pressure(machines: Mapping[str, Mapping[int, Mapping[str, Any]]], folder: Path) -> Path:
    """Draw ``preemption.png`` into a folder, which is made if need be.

    Args:
        machines: title -> pool -> mode -> outcome.
        folder: where to.

    Returns:
        The file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(4.4 * len(machines), 2.5 * len(ROWS)), layout="constrained")
    axes = figure.subplots(len(ROWS), len(machines), squeeze=False)
    for column, (title, outcomes) in enumerate(machines.items()):
        axes[0][column].set_title(title)
        for row, (label, attribute, factor) in enumerate(ROWS):
            _bars(axes[row][column], outcomes, attribute, factor)
            if column == 0:
                axes[row][column].set_ylabel(label)
        axes[-1][column].set_xlabel("KV pool, % of the need")
    axes[0][0].legend(frameon=False)
    target = folder / "preemption.png"
    figure.savefig(target, dpi=110)
    return target


def _bars(axis: Axes, outcomes: Mapping[int, Mapping[str, Any]], attribute: str, factor: float) -> None:
    """One group of bars per pool."""
    for place, (mode, colour) in enumerate(COLOURS.items()):
        places = [group + 0.27 * (place - 1) for group in range(len(outcomes))]
        values = [factor * getattr(modes[mode], attribute) for modes in outcomes.values()]
        axis.bar(places, values, width=0.25, color=colour, label=mode)
    axis.set_xticks(range(len(outcomes)), [str(pool) for pool in outcomes])
    axis.spines[["top", "right"]].set_visible(False)
