"""``headway explain``: what happened to one request, and why, out of a trace."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from headway.config import ConfigError


def explain(
    trace: Annotated[Path, typer.Argument(help="A step trace, as written with --trace.")],
    request: Annotated[
        str, typer.Argument(help="The request's id in the trace; without one, all ids are listed.")
    ] = "",
) -> None:
    """Tell the life of a request: when it waited and why, what each step computed of it, what preempted it.

    Every decision of the run is made again and compared with the trace, so what is told is what happened.
    """
    from headway.cli.life import Life
    from headway.cli.replay import Replay
    from headway.engine.trace import TraceReader

    if not trace.is_file():
        raise ConfigError("trace", str(trace), "there is no such file")
    names = list(dict.fromkeys(_names(trace)))
    if not request:
        typer.echo("\n".join(names))
        return
    if request not in names:
        close = difflib.get_close_matches(request, names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the trace has {len(names)} requests; leave it out for a list"
        raise ConfigError("request", request, hint)
    reader = TraceReader(trace)
    life = Life(request, reader.header.scheduler, reader.header.cache)
    life.follow(Replay(reader))
    width = max(len(moment.steps) for moment in life.moments)
    for moment in life.moments:
        typer.echo(f"{moment.steps:<{width}}  {moment.text}")


def _names(trace: Path) -> Iterator[str]:
    """Names of all requests of a trace."""
    from headway.engine.trace import TraceReader

    return (line["request_id"] for line in TraceReader(trace) if line["kind"] == "add")
