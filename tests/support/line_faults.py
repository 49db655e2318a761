"""Faults at every line: which lines a call runs through, and the same call again with an exception at one of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any


class LineFault(Exception):
    """What is raised at a line."""


class LineTracer:
    """Follows a call through the lines of some files.

    Args:
        folders: parts of paths; lines of other files do not count.
        within: names of functions; only lines executed while one of them runs count, its own included.
        raise_at: number of the line at which to raise, counted from 0 over the whole call; ``None`` for none.

    Attributes:
        lines: (file, line number) of every line that was run through, in order.
    """

    def __init__(self, folders: Collection[str], within: Collection[str], raise_at: int | None = None) -> None:
        self._folders = folders
        self._within = within
        self._raise_at = raise_at
        self._depth = 0
        self.lines: list[tuple[str, int]] = []

    def run(self, call: Callable[[], Any]) -> Any:
        """Make the call."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return call()
        finally:
            sys.settrace(before)

    @property
    def raised(self) -> bool:
        """Whether the line was reached."""
        return self._raise_at is not None and len(self.lines) > self._raise_at

    def places(self) -> list[int]:
        """The first and the last pass over every line."""
        first = {line: place for place, line in reversed(list(enumerate(self.lines)))}
        last = dict(zip(self.lines, range(len(self.lines)), strict=True))
        return sorted({*first.values(), *last.values()})

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        opens = frame.f_code.co_name in self._within
        if not opens and not self._depth:
            return None
        self._depth += opens
        counts = any(folder in frame.f_code.co_filename for folder in self._folders)

        def follow(frame: FrameType, event: str, _: Any) -> Any:
            if event == "return":
                self._depth -= opens
            if event == "line" and counts:
                self.lines.append((frame.f_code.co_filename, frame.f_lineno))
                if self._raise_at == len(self.lines) - 1:
                    raise LineFault(f"at {frame.f_code.co_filename}:{frame.f_lineno}")
            return follow

        return follow
