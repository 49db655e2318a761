"""A small scheduler with a model and all checks around it, for scenes told in a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headway.core.request import Request
from tests.core.builders import PrefixModel, Run, drive, make_scheduler
from tests.core.properties import StepChecker


class Scene:
    """Runs one or several workloads after another on one scheduler; every step is checked.

    Args:
        failures: step -> row -> message, rows whose computation fails.
        options: as for ``make_scheduler``.
    """

    def __init__(self, *, failures: Mapping[int, Mapping[int, str]] | None = None, **options: Any) -> None:
        self.scheduler = make_scheduler(**options)
        self.checker = StepChecker(self.scheduler.config, self.scheduler.cache)
        self.model = PrefixModel(failures=failures)

    def run(self, arrivals: Iterable[Request] | Mapping[int, Sequence[Request]], **how: Any) -> Run:
        """As ``drive``. Steps of arrivals, aborts and reasons count from 1 in every run."""
        return drive(self.scheduler, arrivals, model=self.model, watcher=self.checker, **how)

    @property
    def num_free(self) -> int:
        """Free blocks."""
        return self.scheduler.kv.pool.num_free
