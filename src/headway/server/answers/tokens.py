"""Tokens and their log probabilities as text."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

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


def echoed(prompt: str, end: bytes, text: str, token_ids: Sequence[int], bytes_of: Callable[[int], bytes]) -> str:
    """A prompt as it stands before an output that may complete its last character.

    Args:
        prompt: its text.
        end: bytes of a character that the prompt begins and does not complete, for which its text has U+FFFD.
        text: the beginning of the output; empty if there is none.
        token_ids: tokens of that text as far as they are known.
        bytes_of: what a token adds to the text.
    """
    if not end or not text or not text[0].encode().startswith(end):
        return prompt
    first = next(filter(None, map(bytes_of, token_ids)), b"")
    goes_on = not first or 0x80 <= first[0] < 0xC0  # else the output has a character of its own that begins alike
    return prompt[:-1] if goes_on else prompt


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
