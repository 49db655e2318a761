"""``headway models``: which models are at hand, and how to get them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from headway.cli.fetch import fetch_progress

models_app = typer.Typer(help="List models and fetch them.", no_args_is_help=True, rich_markup_mode=None)


@models_app.command(name="list")
def list_command() -> None:
    """Show the models that go by a short name, and what else is on this machine."""
    from headway.models.loading import list_models

    table = Table("model", "what it is", "licence", "size", "here", box=None, pad_edge=False, header_style="bold")
    for model in list_models():
        size = f"{model.size_bytes / 1e6:,.0f} MB"
        table.add_row(model.name, model.title, model.license, size, "yes" if model.path else "no")
    Console().print(table)


@models_app.command()
def pull(
    name: Annotated[str, typer.Argument(help="A short name out of the list, or a hub name such as org/name.")],
) -> None:
    """Fetch a model and print where it is."""
    from headway.models import loading

    with fetch_progress() as report:
        source = loading.pull(name, report)
    typer.echo(str(source.path))
