"""Whether a scheduler whose step served nobody is stuck, or rests until something can change.

The one rule of that kind: the engine sleeps by it, the simulation lets its clock jump by it.
"""

from __future__ import annotations

from math import inf

from headway.core.scheduler import Scheduler

MAX_IDLE_STEPS = 16
"""So many steps in a row that change nothing, while nobody is held back by time, mean that none ever will."""

POLL_S = 0.01
"""A policy that does not say how long it holds a request is asked again after so long."""


class RestRule:
    """Told of every step, it says when the next one can differ.

    Args:
        scheduler: looked at after its steps.
        max_polls: so often in a row a hold without an end is looked at again; then only others can end it.
    """

    def __init__(self, scheduler: Scheduler, *, max_polls: float = inf) -> None:
        self._scheduler = scheduler
        self._max_polls = max_polls
        self._num_idle = 0
        self._num_polls = 0

    def observe(self, now: float, *, moved: bool) -> float:
        """Take in a step.

        Args:
            now: time after it.
            moved: whether it had rows, or anything happened in it.

        Returns:
            The time from which on another step can differ, if no request comes or goes before: ``now`` if at once,
            ``inf`` if never.
        """
        if moved or not self._scheduler.has_unfinished:
            self._num_idle = self._num_polls = 0
            return now
        held_until_s = self._scheduler.held_until_s
        if held_until_s is None:
            self._num_idle += 1
            return now if self._num_idle < MAX_IDLE_STEPS else inf
        self._num_idle = 0
        if held_until_s > now:
            self._num_polls = 0
            return held_until_s
        self._num_polls += 1
        return now + POLL_S if self._num_polls <= self._max_polls else inf
