"""Tokens and their log probabilities as text."""

from __future__ import annotations

import codecs
from collections.abc import Callable

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have."""


def token_text(token: bytes) -> str:
    """A token as text; one that is no whole character as ``bytes:\\xe2\\x82``, so that none is lost."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{value:02x}" for value in token)


def finite(logprob: float) -> float:
    """A number that JSON can hold."""
    return max(logprob, LEAST_LOGPROB)


class Offsets:
    """Where tokens begin in the text of one choice, in characters.

    Args:
        bytes_of: what a token adds to the text.
    """

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = 0

    def next(self, token_id: int) -> int:
        """The place of the next token."""
        place = self._num_chars
        self._num_chars += len(self._decoder.decode(self._bytes_of(token_id)))
        return place
