"""Holds an engine in the middle of its steps, to look at moments that would be over too soon."""

from __future__ import annotations

import threading

from headway.core.plan import StepPlan

PATIENCE_S = 20.0
"""Far more than any step takes; only a test that hangs would notice."""


class Gate:
    """To be called with every plan while it is computed; holds it until it may pass.

    Args:
        is_open: whether all pass.
        allowed: how many pass before the first one is held.

    Attributes:
        num_reached: steps that came here so far, held ones included.
    """

    def __init__(self, *, is_open: bool = False, allowed: int = 0) -> None:
        self.is_open = is_open
        self.num_reached = 0
        self._condition = threading.Condition()
        self._allowed = allowed

    def __call__(self, plan: StepPlan) -> None:
        with self._condition:
            self.num_reached += 1
            self._condition.notify_all()
            assert self._condition.wait_for(lambda: self.is_open or self._allowed > 0, PATIENCE_S)
            self._allowed -= 1

    def open(self) -> None:
        """Stop nothing any more."""
        with self._condition:
            self.is_open = True
            self._condition.notify_all()

    def shut(self) -> None:
        """Hold the next step."""
        with self._condition:
            self.is_open, self._allowed = False, 0

    def let_through(self, steps: int = 1) -> None:
        """With a step held: let so many pass, and wait until the next one is held."""
        with self._condition:
            target = self.num_reached + steps
            self._allowed = steps
            self._condition.notify_all()
            assert self._condition.wait_for(lambda: self.num_reached >= target, PATIENCE_S)

    def allow(self, steps: int) -> None:
        """Let so many pass, now or later."""
        with self._condition:
            self._allowed = steps
            self._condition.notify_all()

    def wait(self, num_reached: int = 1) -> None:
        """Wait until so many steps have come here."""
        with self._condition:
            assert self._condition.wait_for(lambda: self.num_reached >= num_reached, PATIENCE_S)
