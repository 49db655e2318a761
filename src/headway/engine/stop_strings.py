"""Stop strings in a text that arrives in pieces.

The rule, whatever the pieces: the text is cut at the match that begins first; of those that begin at the same place,
at the one that ends first. So a match is decided only when no match that begins before it is possible any more, and
text that may yet turn out to be part of a match is held back. What was let go is never part of one.

Text of special tokens may be hidden from the client. Stop strings are looked for both in the text with hidden runs and
in the text without: ``<|im_end|>`` is found where it is a special token, and a stop string that the client would see is
found though a hidden token stands within it. A match has hidden runs whole or not at all, so ``<`` does not stop at
``<|im_end|>``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Run(NamedTuple):
    """A stretch of text.

    Attributes:
        text: the text.
        hidden: whether it is that of a special token which the client does not get.
    """

    text: str
    hidden: bool = False


def shown_text(runs: Iterable[Run]) -> str:
    """What the client gets of it."""
    return "".join(run.text for run in runs if not run.hidden)


@dataclass(frozen=True)
class Match:
    """A stop string that was found.

    Attributes:
        stop: which.
        start, end: its place in the whole text with hidden runs, in characters.
    """

    stop: str
    start: int
    end: int


class StopStringFinder:
    """Finds the stop strings of one request. All places are in the text with hidden runs.

    Args:
        stops: not empty each; may overlap, be prefixes of one another, or be none.
        keep: whether a match is let go as well.
    """

    def __init__(self, stops: Sequence[str], *, keep: bool = False) -> None:
        # Ties at one place go to the shortest, so it comes first.
        self._stops = tuple(sorted(dict.fromkeys(stops), key=lambda stop: (len(stop), stop)))
        self._keep = keep
        self._held = _Held()
        self.floor = 0
        """Matches that end at or before this place do not count. May be raised at any time."""

    @property
    def position(self) -> int:
        """Characters let go so far."""
        return self._held.start

    def feed(self, runs: Iterable[Run], *, last: bool = False) -> tuple[list[Run], Match | None]:
        """Take in what follows the last piece.

        Args:
            runs: may be none.
            last: whether no more will come.

        Returns:
            The text that can be let go, and the match that ends it. After a match nothing may be fed any more; the
            text let go ends where the match begins, or ends if it is kept.
        """
        held = self._held
        for run in runs:
            if run.text:
                held.append(run)
        match = self._first_match()
        certain = held.end if last else self._first_candidate()
        if match is None or match.start > certain:
            return held.let_go(certain), None
        return held.let_go(match.end if self._keep else match.start), match

    def _first_match(self) -> Match | None:
        """The match in what is held that begins first; of several, the one that ends first."""
        found = [match for stop in self._stops for match in self._matches_of(stop)]
        return min(found, key=lambda match: (match.start, match.end), default=None)

    def _matches_of(self, stop: str) -> Iterable[Match]:
        """The first match of a stop string with hidden runs, and that without."""
        for text, places in self._held.views():
            index = text.find(stop)
            while index >= 0:
                start, end = places[index], places[index + len(stop) - 1] + 1
                if end > self.floor and not self._held.splits(start) and not self._held.splits(end):
                    yield Match(stop, start, end)
                    break
                index = text.find(stop, index + 1)

    def _first_candidate(self) -> int:
        """Where the longest end of what is held begins that may yet become a match."""
        first = self._held.end
        for text, places in self._held.views():
            for stop in self._stops:
                for length in range(min(len(stop) - 1, len(text)), 0, -1):
                    start = places[len(text) - length]
                    if start >= first:
                        break
                    if text.endswith(stop[:length]) and not self._held.splits(start):
                        first = start
                        break
        return first


class _Held:
    """Text held back.

    Attributes:
        start, end: its place in the whole text.
    """

    def __init__(self) -> None:
        self.start = self.end = 0
        self._text = ""
        self._hidden_starts: list[int] = []
        self._hidden_ends: list[int] = []
        self._shown = ""
        """The text without hidden runs, and the place of each of its characters. Only kept while there are any."""
        self._shown_places: list[int] = []

    def append(self, run: Run) -> None:
        """Hold a run."""
        text, hidden = run
        start, self.end = self.end, self.end + len(text)
        if hidden:
            if not self._hidden_starts:
                self._shown, self._shown_places = self._text, list(range(self.start, start))
            self._hidden_starts.append(start)
            self._hidden_ends.append(self.end)
        elif self._hidden_starts:
            self._shown += text
            self._shown_places += range(start, self.end)
        self._text += text

    def views(self) -> Iterable[tuple[str, Sequence[int]]]:
        """The text with hidden runs and, if there are any, that without, each with the places of its characters."""
        yield self._text, range(self.start, self.end)
        if self._hidden_starts:
            yield self._shown, self._shown_places

    def splits(self, place: int) -> bool:
        """Whether a place is within a hidden run."""
        index = bisect_left(self._hidden_starts, place) - 1
        return index >= 0 and place < self._hidden_ends[index]

    def let_go(self, place: int) -> list[Run]:
        """Let go of the text before a place, which is not within a hidden run."""
        runs = []
        begin, num_hidden = self.start, bisect_right(self._hidden_ends, place)
        for start, end in zip(self._hidden_starts[:num_hidden], self._hidden_ends[:num_hidden], strict=True):
            runs += [Run(self._piece(begin, start)), Run(self._piece(start, end), hidden=True)]
            begin = end
        runs.append(Run(self._piece(begin, place)))
        self._text = self._text[place - self.start :]
        self.start = place
        del self._hidden_starts[:num_hidden], self._hidden_ends[:num_hidden]
        num_shown = bisect_left(self._shown_places, place)
        self._shown = self._shown[num_shown:]
        del self._shown_places[:num_shown]
        return [run for run in runs if run.text]

    def _piece(self, start: int, end: int) -> str:
        return self._text[start - self.start : end - self.start]
