"""The ``headway`` command. Starting it imports no torch; each command imports what it needs when it runs."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

import headway
from headway.cli.bench import bench
from headway.cli.demo import demo
from headway.cli.draw import draw
from headway.cli.explain import explain
from headway.cli.generate import generate
from headway.cli.help import GroupedCommand
from headway.cli.models import models_app
from headway.cli.serve import serve

USAGE_ERROR = 2


class Commands(TyperGroup):
    """Turns errors that the user can mend into one sentence; all others are bugs and keep their traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if not isinstance(error, mendable_errors()):
                raise
            typer.echo(f"headway: {error}", err=True)
            raise typer.Exit(USAGE_ERROR) from error


def mendable_errors() -> tuple[type[Exception], ...]:
    """Errors whose message says what to change. Called only when something went wrong: it imports a lot."""
    from headway.cli.prompts import PromptError
    from headway.cli.replay import ReplayDiffers
    from headway.config import ConfigError
    from headway.core.request import RequestRefused
    from headway.engine.trace import TraceError
    from headway.models.config import UnsupportedModel
    from headway.models.loading import LoadingError

    return ConfigError, RequestRefused, LoadingError, UnsupportedModel, PromptError, TraceError, ReplayDiffers


app = typer.Typer(
    cls=Commands,
    help="Serve language models on this machine with a scheduler that you can read, replay and prove.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=GroupedCommand)(generate)
app.command(cls=GroupedCommand)(serve)
app.command(cls=GroupedCommand)(demo)
app.command(name="draw")(draw)
app.command()(explain)
app.add_typer(models_app, name="models")
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(bench)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"headway {headway.__version__}")


def main() -> None:
    """Entry point of the ``headway`` command."""
    app()


if __name__ == "__main__":
    main()
