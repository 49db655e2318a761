"""The progress bar of ``LLM.generate`` and ``headway generate``."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headway.core.scheduler import Scheduler
from headway.engine.outputs import RequestUpdate


class GenerationProgress:
    """Shows on standard error how many requests ended, tokens per second, and how many run and wait.

    Args:
        scheduler: read, not driven.
        num_requests: how many will be shown.
    """

    def __init__(self, scheduler: Scheduler, num_requests: int) -> None:
        self._scheduler = scheduler
        self._num_tokens = 0
        self._progress = Progress(
            TextColumn("generate"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(
                "{task.fields[rate]:.1f} tokens/s, {task.fields[running]} running, {task.fields[waiting]} waiting"
            ),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task("", total=num_requests, rate=0.0, running=0, waiting=0)

    def update(self, update: RequestUpdate) -> None:
        """Take in what was delivered."""
        self._num_tokens += len(update.token_ids)
        elapsed_s = self._progress.tasks[0].elapsed or 0.0
        self._progress.update(
            self._task,
            advance=1 if update.output is not None else 0,
            rate=self._num_tokens / elapsed_s if elapsed_s else 0.0,
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
        )

    def __enter__(self) -> GenerationProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
