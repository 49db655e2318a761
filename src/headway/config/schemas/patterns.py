"""Regular expressions of JSON schemas, which are JavaScript's, Python's or Rust's, as several of Rust's."""

from __future__ import annotations

import re
from collections.abc import Iterator

_DECIMAL = r"(?!^[-+.]*$)"
"""How pydantic begins the pattern of a decimal: not signs and points alone, which is to say that it has a digit."""
_EMAIL = r"(?!\.)(?!.*\.\.)"
"""How zod begins the pattern of an email address, whose format says as much."""
_PIECE = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\(\?<?[=!]|.", re.DOTALL)
_LOOKS = ("(?=", "(?!", "(?<=", "(?<!")


def split(pattern: str, format_name: str = "") -> list[str] | None:
    """Patterns that a string matches all together just if it matches ``pattern``; ``None`` if there are none.

    Args:
        pattern: found anywhere in the string, unless it is anchored.
        format_name: of the same string, which is kept to.
    """
    anchored = pattern.startswith("^")
    rest, found = pattern.removeprefix("^"), []
    if anchored and rest.startswith(_DECIMAL):
        rest = rest.removeprefix(_DECIMAL)
        found.append("[0-9]")
    if anchored and format_name == "email":
        rest = rest.removeprefix(_EMAIL)
    while anchored and rest.startswith("(?="):
        length = _group_length(rest)
        found.append("^(?:" + rest[len("(?=") : length - 1] + ")")
        rest = rest[length:]
    found.append(("^" if anchored else "") + rest)
    translated = [_translate(each) for each in found]
    return [each for each in translated if each is not None] if None not in translated else None


def _pieces(pattern: str) -> Iterator[str]:
    return (match.group() for match in _PIECE.finditer(pattern))


def _group_length(pattern: str) -> int:
    """The length of the group that a pattern begins with; of the whole if it does not end."""
    depth = length = 0
    for piece in _pieces(pattern):
        length += len(piece)
        depth += piece.startswith("(") - (piece == ")")
        if depth == 0:
            break
    return length


def _translate(pattern: str) -> str | None:
    """In Rust's syntax, without look-around and references back; ``None`` if it needs them."""
    pieces = []
    for piece in _pieces(pattern):
        if piece in _LOOKS or re.fullmatch(r"\\(?:[bBk1-9])", piece):
            return None
        pieces.append({r"\A": "^", r"\Z": "$", r"\z": "$", r"\/": "/"}.get(piece, piece))
    return "".join(pieces)
