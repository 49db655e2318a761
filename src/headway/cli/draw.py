"""``headway draw``: the picture of a run, out of its trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.config import ConfigError
from headway.config.files import writable_file

SMALLEST_PX = 700
LARGEST_PX = 20_000


def draw(
    trace: Annotated[Path, typer.Argument(help="A step trace, as written with --trace.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="PNG to write; default: beside the trace.")
    ] = None,
    width: Annotated[int, typer.Option(help="Width of the picture [pixels].")] = 1700,
) -> None:
    """Draw the run that a trace recorded.

    The picture has requests over steps, the KV memory, and the tokens of each step. The trace is replayed through the
    scheduler first, so a picture is also proof that the run can be repeated.
    """
    from headway.cli.picture import draw as draw_picture
    from headway.cli.timeline import read_timeline
    from headway.engine.trace import TraceReader

    if not SMALLEST_PX <= width <= LARGEST_PX:
        raise ConfigError("width", width, f"must be from {SMALLEST_PX} to {LARGEST_PX} pixels")
    if not trace.is_file():
        raise ConfigError("trace", str(trace), "there is no such file")
    target = output if output is not None else trace.with_suffix(".png")
    writable_file("output", target)
    timeline = read_timeline(TraceReader(trace))
    draw_picture(timeline, target, width=width)
    typer.echo(
        f"{target}: {len(timeline.requests)} requests, {len(timeline.steps)} steps, each decided again as recorded"
    )
