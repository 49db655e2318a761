"""Marks that parsers look for in outputs, as text or as special tokens whose text is not shown.

A special token that leaves no text still tells where a call begins. In what parsers read, it is one character
that no text contains: a lone surrogate, which decoding never makes. So it cannot be cut by the end of a piece, and
nothing that a model writes can be taken for it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

_FIRST = 0xD800
_NOT_SHOWN = re.compile("[\ud800-\udfff]")
_known: dict[str, str] = {}


@dataclass(frozen=True)
class Mark:
    """A text that means something.

    Attributes:
        text: as models write it.
        hidden: stands for it where it is a special token that leaves no text.
    """

    text: str
    hidden: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", _known.setdefault(self.text, chr(_FIRST + len(_known))))

    @property
    def pattern(self) -> str:
        """A regular expression of either."""
        return f"{re.escape(self.text)}|{self.hidden}"

    def begins(self, text: str) -> str:
        """What ``text`` begins with of it: the mark in either form, or nothing."""
        return next((form for form in (self.text, self.hidden) if text.startswith(form)), "")

    def may_begin(self, text: str) -> bool:
        """Whether ``text`` is the mark's beginning, and more is needed to tell."""
        return len(text) < len(self.text) and self.text.startswith(text)


def with_marks(text: str, specials: Sequence[tuple[int, str]], marks: Collection[Mark]) -> str:
    """A text with the special tokens among ``specials`` (place, text) that are marks; the others leave nothing."""
    if not specials:
        return text
    hidden = {mark.text: mark.hidden for mark in marks}
    parts, start = [], 0
    for place, special in specials:
        parts += [text[start:place], hidden.get(special, "")]
        start = place
    return "".join([*parts, text[start:]])


def shown(text: str) -> str:
    """What clients see of a text: all but special tokens."""
    return _NOT_SHOWN.sub("", text)


def is_hidden(char: str) -> bool:
    """Whether a character stands for a special token."""
    return "\ud800" <= char <= "\udfff"


def num_told(text: str, marks: Collection[Mark]) -> int:
    """Characters of ``text`` that cannot be part of a mark that goes on after its end."""
    longest = max((len(mark.text) for mark in marks), default=0)
    for length in range(min(len(text), longest - 1), 0, -1):
        end = text[len(text) - length :]
        if any(mark.may_begin(end) for mark in marks):
            return len(text) - length
    return len(text)
