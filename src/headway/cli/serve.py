"""``headway serve``: an OpenAI-compatible HTTP server for one model."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.fetch import fetch_progress
from headway.cli.flags import engine_panel, flags_of
from headway.config import EngineOptions, ServerOptions
from headway.config.combinations import check_server
from headway.config.sources import merge

DEFAULT_MODEL = "smollm2-135m"
LIMITS = "Limits of one call"


def server_panel(name: str) -> str:
    """Heading under which an option of ``ServerOptions`` is shown."""
    return LIMITS if name.startswith("max_") else "Server"


@flags_of("server", ServerOptions, server_panel)
@flags_of("engine", EngineOptions, engine_panel, exclude=("model",))
def serve(
    model: Annotated[
        str | None,
        typer.Argument(help=f"A model's alias, folder, GGUF file or hub name; {DEFAULT_MODEL} if nothing names one."),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="A TOML file with options by their names.")] = None,
    *,
    server: dict[str, Any],
    engine: dict[str, Any],
) -> None:
    """Serve a model over HTTP, as OpenAI's API does (docs/server.md).

    Every option can also be set by an environment variable, HEADWAY_ and its name in capitals, or in a TOML file; flags
    go before the environment, which goes before the file. The first SIGTERM or Ctrl-C drains the server, the second
    ends the wait.
    """
    given = engine if model is None else {**engine, "model": model}
    values, server_values = merge((EngineOptions, ServerOptions), (given, server), os.environ, config)
    options = EngineOptions(**{"model": DEFAULT_MODEL, **values})
    server_options = ServerOptions(**server_values)  # says what is wrong before anything is loaded
    check_server(server_options, enable_prefix_caching=options.enable_prefix_caching)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from headway.build import build_engine
    from headway.server.run import serve as run

    with fetch_progress() as progress:
        made = build_engine(options, say=_say, progress=progress)
    code = run(made, server_options, say=_say)
    if code:
        raise typer.Exit(code)


def _say(sentence: str) -> None:
    typer.echo(f"headway: {sentence}", err=True)
