"""Stop strings in a text that arrives in pieces.

The rule, whatever the pieces: the text is cut at the match that begins first; of those that begin at the same place,
at the one that ends first. So a match is decided only when no match that begins before it is possible any more, and
text that may yet turn out to be part of a match is held back. What was let go is never part of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Match:
    """A stop string that was found.

    Attributes:
        stop: which.
        start, end: its place in the whole text, in characters.
    """

    stop: str
    start: int
    end: int


class StopStringFinder:
    """Finds the stop strings of one request.

    Args:
        stops: not empty each; may overlap, be prefixes of one another, or be none.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        # Ties at one place go to the shortest, so it comes first.
        self._stops = tuple(sorted(dict.fromkeys(stops), key=lambda stop: (len(stop), stop)))
        self._held = ""
        self._position = 0
        """Place of the held text in the whole text."""
        self.floor = 0
        """Matches that end at or before this place do not count. May be raised at any time."""

    @property
    def position(self) -> int:
        """Characters let go so far."""
        return self._position

    def feed(self, text: str, *, last: bool = False) -> tuple[str, Match | None]:
        """Take in a piece of text.

        Args:
            text: what follows the last piece; may be empty.
            last: whether no more will come.

        Returns:
            The text that can be let go, and the match that ends it. After a match nothing may be fed any more;
            the text let go ends where the match begins.
        """
        if not self._stops:
            self._position += len(text)
            return text, None
        held = self._held + text
        match = self._first_match(held)
        num_free = len(held) if last else self._num_free(held)
        if match is not None and match.start - self._position <= num_free:
            num_free = match.start - self._position
        else:
            match = None
        self._position += num_free
        self._held = held[num_free:]
        return held[:num_free], match

    def _first_match(self, held: str) -> Match | None:
        """The match in ``held`` that begins first; of several, the one that ends first."""
        found: Match | None = None
        for stop in self._stops:
            start = held.find(stop, max(0, self.floor + 1 - self._position - len(stop)))
            if start >= 0 and (found is None or self._position + start < found.start):
                found = Match(stop, self._position + start, self._position + start + len(stop))
        return found

    def _num_free(self, held: str) -> int:
        """Characters before the longest end of ``held`` that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(held)), longest, -1):
                if held.endswith(stop[:length]):
                    longest = length
                    break
        return len(held) - longest
