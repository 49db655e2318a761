"""A small scheduler with a model and all checks around it, for scenes told in a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headway.core.events import Preempted
from headway.core.request import Request
from headway.sim.fake import FakeExecutor
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


def swap_scene(**options: Any) -> Scene:
    """A scene whose executor checks every block and every copy; victims are swapped."""
    options = {"num_host_blocks": 50, "preemption_mode": "swap", **options}
    scene = Scene(**options)
    scene.model = FakeExecutor(block_size=options.get("block_size", 4))  # type: ignore[assignment]
    return scene


def num_held_on_host(scene: Scene) -> int:
    """Host blocks in use."""
    host = scene.scheduler.kv.host
    assert host is not None
    return host.pool.num_blocks - host.pool.num_free


def swaps(run: Run) -> list[Preempted]:
    """Preemptions that kept their progress on the host."""
    return [event for event in run.preemptions if event.kind == "swap"]
