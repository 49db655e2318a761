"""Since when each request waits for the reason it waits for: exact, at a cost per step that the queue does not change.

The scheduler gives a reason of its own only to the few requests it looked at; all others share one. So it is enough to
note when that shared reason last changed, when each of the few got its own, and when it lost it again:

    step            10     11     12     13     14
    shared reason   queue  queue  kv     kv     queue
    own reason             kv     (none) (none)
                           ^ waits for blocks since 11, also in step 13: it lost its own reason to the same shared one
                                                ^ and by its place in the queue since 14, when the shared one changed

Requests in a slot have a column each, compared as one array.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headway.core.events import Admitted, Event, Finished, Queued
from headway.core.inspection import StepReasons
from headway.core.reasons import ReasonCode, WaitReason


class Mark(NamedTuple):
    """When something began: in which step, and at what time on the engine's clock."""

    step: int
    at_s: float


class _Own(NamedTuple):
    code: ReasonCode
    since: Mark


class _Rest(NamedTuple):
    """A request without a reason of its own: from which step on, and since when it waits if the shared one stays."""

    step: int
    since: Mark


@dataclass(frozen=True)
class Waits:
    """What :class:`WaitLog` knew at one moment."""

    _own: Mapping[int, _Own]
    _rest: Mapping[int, _Rest]
    _shared: _Own
    _row_steps: npt.NDArray[np.int64]
    _row_times: npt.NDArray[np.float64]

    def of_waiter(self, handle: int) -> Mark:
        """Since when a request without a slot waits for its present reason."""
        own = self._own.get(handle)
        return own.since if own is not None else _shared_since(self._shared, self._rest.get(handle))

    def of_row(self, slot: int) -> Mark:
        """Since when the request in a slot is served, or is not for its present reason."""
        return Mark(int(self._row_steps[slot]), float(self._row_times[slot]))


class WaitLog:
    """Folds the reasons of every step.

    Args:
        num_slots: slots of the scheduler.
        now: time on the engine's clock.
    """

    def __init__(self, num_slots: int, now: float) -> None:
        self._own: dict[int, _Own] = {}
        self._rest: dict[int, _Rest] = {}
        self._shared = _Own(ReasonCode.QUEUE_POSITION, Mark(0, now))
        self._row_reasons = np.zeros(num_slots, np.int8)
        self._row_steps = np.zeros(num_slots, np.int64)
        self._row_times = np.full(num_slots, now, np.float64)

    def observe(self, reasons: StepReasons, events: Iterable[Event], now: float) -> None:
        """Take in a step, with the events since the last one. Costs time in proportion to events and own reasons."""
        mark = Mark(reasons.step, now)
        entered = self._follow(events)
        self._compare_waiting(reasons, mark)
        changed = reasons.rows != self._row_reasons
        changed[entered] = True
        self._row_reasons[changed] = reasons.rows[changed]
        self._row_steps[changed] = mark.step
        self._row_times[changed] = mark.at_s

    def copy(self) -> Waits:
        """What is known now."""
        return Waits(dict(self._own), dict(self._rest), self._shared, self._row_steps.copy(), self._row_times.copy())

    def _follow(self, events: Iterable[Event]) -> list[int]:
        """Who joined the queue and who left it; the slots that were entered."""
        entered = []
        for event in events:
            if isinstance(event, Queued):
                self._rest[event.handle] = _Rest(event.step, Mark(event.step, event.now))
            elif isinstance(event, (Admitted, Finished)):
                self._rest.pop(event.handle, None)
                self._own.pop(event.handle, None)
                if isinstance(event, Admitted):
                    entered.append(event.slot)
        return entered

    def _compare_waiting(self, reasons: StepReasons, mark: Mark) -> None:
        before, shared = self._own, self._shared
        if shared.code is not reasons.rest:
            self._shared = _Own(reasons.rest, mark)
        self._own = {
            handle: before[handle]
            if handle in before and before[handle].code is reason.code
            else self._begin(handle, reason, shared, mark)
            for handle, reason in reasons.own.items()
        }
        for handle, own in before.items():
            if handle not in self._own:
                since = own.since if own.code is reasons.rest else mark
                self._rest[handle] = _Rest(mark.step, since)

    def _begin(self, handle: int, reason: WaitReason, shared: _Own, mark: Mark) -> _Own:
        """Its own reason, which may be the one it shared before."""
        rest = self._rest.pop(handle, None)
        if rest is not None and shared.code is reason.code:
            return _Own(reason.code, _shared_since(shared, rest))
        return _Own(reason.code, mark)


def _shared_since(shared: _Own, rest: _Rest | None) -> Mark:
    """Since when a request waits for the shared reason: since that began, or since the request came to it later."""
    if rest is None or shared.since.step > rest.step:
        return shared.since
    return rest.since
