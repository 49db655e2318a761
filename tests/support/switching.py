"""Runs two threads by turns, line by line, so that a test can try every order of what they do.

Both are real threads, but only one has the baton. It may lose it before any line of the files that are watched: a
schedule says how many such lines each may do before the other is to go on.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

PATIENCE_S = 20.0


class Switching:
    """One run of two functions.

    Args:
        files: names of the files before whose lines the baton may change hands.
        schedule: how many lines the first, the second, the first, ... may do before the other one goes on. Lines that
            one does because the other gave way are not counted; after the schedule none are.

    Attributes:
        num_used: entries of the schedule that were used up.
    """

    def __init__(self, files: Sequence[str], schedule: Sequence[int]) -> None:
        self._files = frozenset(files)
        self._schedule = list(schedule)
        self.num_used = 0
        self._left = self._schedule[0] if schedule else -1
        self._turn = 0
        self._ended = [False, False]
        self._errors: list[BaseException] = []
        self._changed = threading.Condition()

    def run(self, first: Callable[[], object], second: Callable[[], object]) -> None:
        """Run both to their end; what one of them raises is raised here."""
        threads = [
            threading.Thread(target=self._run, args=(me, work), daemon=True) for me, work in enumerate((first, second))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"a thread hangs under {self._schedule}"
        if self._errors:
            raise self._errors[0]

    def give_way(self) -> bool:
        """Let the other one go on, out of turn; ``False`` if it has ended."""
        me = self._turn
        if self._ended[1 - me]:
            return False
        self._pass_on(me)
        return True

    def _run(self, me: int, work: Callable[[], object]) -> None:
        try:
            self._wait(me)
            sys.settrace(lambda frame, event, argument: self._trace(me, frame))
            try:
                work()
            finally:
                sys.settrace(None)
        except BaseException as error:
            self._errors.append(error)
        finally:
            with self._changed:
                self._ended[me] = True
                self._turn = 1 - me
                self._changed.notify_all()

    def _trace(self, me: int, frame: FrameType) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "line":
                self._point(me)
            return line

        return line

    def _point(self, me: int) -> None:
        while self.num_used < len(self._schedule) and me == self.num_used % 2:
            if self._left:
                self._left -= 1
                return
            self._next(me)

    def _next(self, me: int) -> None:
        """A slice is used up: begin the next one."""
        self.num_used += 1
        self._left = self._schedule[self.num_used] if self.num_used < len(self._schedule) else -1
        self._pass_on(me)

    def _pass_on(self, me: int) -> None:
        with self._changed:
            if self._ended[1 - me]:
                return
            self._turn = 1 - me
            self._changed.notify_all()
        self._wait(me)

    def _wait(self, me: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._turn == me, PATIENCE_S), f"nobody goes on: {self._schedule}"


def two_switches(run: Callable[[Sequence[int]], Switching]) -> Iterator[tuple[int, int]]:
    """Try every schedule in which the first is interrupted once, at any line, and the second once, at any later line.

    Args:
        run: does a run by a schedule.

    Yields:
        The schedules, after they were run.
    """
    first = 0
    while True:
        second = 1
        while run((first, second)).num_used == 2:
            yield first, second
            second += 1
        if run((first,)).num_used < 1:
            return
        first += 1
