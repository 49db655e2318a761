"""What a fetch of a model looks like on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

if TYPE_CHECKING:
    from headway.models.loading import ProgressCallback, PullProgress

STAGES = {"download": "downloading", "unpack": "unpacking"}


@contextmanager
def fetch_progress() -> Iterator[ProgressCallback]:
    """A callback for whoever fetches a model. Nothing is shown before its first call; without a terminal, no bar."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=console
    )
    tasks: dict[str, TaskID] = {}

    def report(progress: PullProgress) -> None:
        if progress.stage not in tasks:
            what = f"{STAGES[progress.stage]} {progress.name}"
            tasks[progress.stage] = bar.add_task(what)
            if console.is_terminal:
                bar.start()
            else:
                console.print(f"{what} ({progress.total_bytes / 1e6:.0f} MB)")
        bar.update(tasks[progress.stage], completed=progress.done_bytes, total=progress.total_bytes)

    try:
        yield report
    finally:
        if tasks and console.is_terminal:
            bar.stop()
