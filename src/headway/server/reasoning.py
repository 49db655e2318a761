"""Reasoning: what a model writes to itself before it answers, between marks of its own, told apart from the answer."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

from headway.config.structured import Reasoning
from headway.server.tools.marks import Mark, num_told, shown
from headway.server.tools.scanner import SPACE

TAIL_TOKENS = 32
"""So many tokens of a prompt's end have any opening mark, and white space behind it."""


class Place(Enum):
    """Where an output begins."""

    BEFORE = "before any reasoning"
    WITHIN = "within reasoning"
    BEHIND = "behind all reasoning"


@dataclass(frozen=True)
class ReasoningFormat:
    """One way to mark reasoning.

    Attributes:
        name: for ``--reasoning-parser``.
        opening, closing: around it. Chat templates may write the opening mark, so that the output begins behind it.
    """

    name: str
    opening: Mark
    closing: Mark

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Both."""
        return (self.opening, self.closing)

    def place_after(self, prompt: str) -> Place:
        """Where an output begins: chat templates may write one of the marks, or both, at the very end of a prompt."""
        end = prompt.rstrip(SPACE)
        if end.endswith(self.opening.text):
            return Place.WITHIN
        return Place.BEHIND if end.endswith(self.closing.text) else Place.BEFORE

    def place_in(self, message: str) -> Place:
        """Where an output begins that goes on with a message."""
        return Place.WITHIN if message.rfind(self.opening.text) > message.rfind(self.closing.text) else Place.BEHIND

    def before_form(self, place: Place, special_ids: Mapping[str, int]) -> Reasoning | None:
        """What may stand before an output of a form.

        Args:
            place: where the output begins.
            special_ids: ids of special tokens, by their texts.
        """
        if place is Place.BEHIND:
            return None
        opening, closing = self.opening.text, self.closing.text
        return Reasoning(opening, closing, place is Place.WITHIN, special_ids.get(opening), special_ids.get(closing))

    def num_tokens(self, token_ids: Sequence[int], bytes_of: Callable[[int], bytes], *, is_open: bool) -> int:
        """Tokens of an output that are reasoning, with its marks.

        Args:
            token_ids: the output.
            bytes_of: what a token adds to the text; special tokens nothing, unless they are marks.
            is_open: whether the output begins within reasoning.
        """
        pieces = [bytes_of(token_id) for token_id in token_ids]
        text, opening, closing = b"".join(pieces), self.opening.text.encode(), self.closing.text.encode()
        start = len(text) - len(text.lstrip(SPACE.encode()))
        if not is_open and not text.startswith(opening, start):
            return 0
        end = text.find(closing, start)
        if end < 0:
            return len(pieces)
        return bisect_left(list(accumulate(map(len, pieces))), end + len(closing)) + 1


FORMATS = (
    ReasoningFormat("think", Mark("<think>"), Mark("</think>")),
    ReasoningFormat("mistral", Mark("[THINK]"), Mark("[/THINK]")),
    ReasoningFormat("seed_oss", Mark("<seed:think>"), Mark("</seed:think>")),
    ReasoningFormat("cohere", Mark("<|START_THINKING|>"), Mark("<|END_THINKING|>")),
)


def find_reasoning(template: str, choice: str) -> ReasoningFormat | None:
    """The format named ``choice``, or, for "auto", the one whose closing mark a chat template has."""
    for known in FORMATS:
        if choice == known.name or (choice == "auto" and known.closing.text in template):
            return known
    return None


class ReasoningParser:
    """Tells reasoning from what follows it, in pieces of any size.

    Reasoning stands at the beginning of an output or nowhere: a mark further on is text. White space around it is
    dropped; an output without reasoning is passed on as it is.

    Args:
        known: the marks.
        is_open: whether the output begins within reasoning. It may then write the opening mark once more.
    """

    def __init__(self, known: ReasoningFormat, *, is_open: bool) -> None:
        self._known = known
        self._is_open = is_open
        self._closing = re.compile(known.closing.pattern)
        self._pending = ""
        self._step = self._before
        self._found: list[str] = []
        self._rest: list[str] = []

    def feed(self, text: str) -> tuple[str, str]:
        """Take in what comes next; return what it adds to the reasoning, and to what follows it."""
        self._pending += text
        while self._step():
            pass
        return self._take()

    def finish(self) -> tuple[str, str]:
        """The output has ended: what is left of both."""
        pending, self._pending = self._pending, ""
        if self._step == self._within or (self._step == self._before and self._is_open):
            self._found.append(shown(pending).rstrip(SPACE))
        else:
            self._rest.append(pending)
        return self._take()

    def _before(self) -> bool:
        """Nothing but white space so far; ``False`` if more text is needed to go on."""
        text = self._pending.lstrip(SPACE)
        opening = self._known.opening.begins(text)
        if opening:
            self._pending, self._step = text[len(opening) :].lstrip(SPACE), self._opened
        elif not text or self._known.opening.may_begin(text):
            return False
        elif self._is_open:
            self._pending, self._step = text, self._within
        else:
            self._step = self._after
        return True

    def _opened(self) -> bool:
        """Behind the opening mark, nothing but white space so far."""
        self._pending = self._pending.lstrip(SPACE)
        if self._pending:
            self._step = self._within
        return bool(self._pending)

    def _within(self) -> bool:
        found = self._closing.search(self._pending)
        told = found.start() if found else num_told(self._pending, (self._known.closing,))
        kept = self._pending[:told].rstrip(SPACE)
        self._found.append(shown(kept))
        if found is None:
            self._pending = self._pending[len(kept) :]
            return False
        self._pending, self._step = self._pending[found.end() :], self._closed
        return True

    def _closed(self) -> bool:
        """Behind the closing mark, nothing but white space so far."""
        self._pending = self._pending.lstrip(SPACE)
        if self._pending:
            self._step = self._after
        return bool(self._pending)

    def _after(self) -> bool:
        text, self._pending = self._pending, ""
        for mark in self._known.marks:
            text = text.replace(mark.hidden, "")
        self._rest.append(text)
        return False

    def _take(self) -> tuple[str, str]:
        found, rest = "".join(self._found), "".join(self._rest)
        self._found.clear()
        self._rest.clear()
        return found, rest
