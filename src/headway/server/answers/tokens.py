"""Tokens and their log probabilities as text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import groupby

from headway.engine.detokenizer import TextDecoder, is_completed

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
    """Where tokens begin in the text that they add up to, in characters.

    Args:
        bytes_of: what a token adds to the text.
        begun: bytes of a character that stands before the tokens and is not complete.
        start: place of the first token.
    """

    def __init__(self, bytes_of: Callable[[int], bytes], begun: bytes = b"", start: int = 0) -> None:
        self._bytes_of = bytes_of
        self._decoder = TextDecoder()
        self._decoder.decode(begun)
        self._is_before = bool(begun)
        """Whether the bytes that wait for the rest of their character are from before the first token."""
        self.place = start
        """Characters of text so far."""

    def next(self, token_id: int) -> int:
        """The place of the next token."""
        waiting, new = self._decoder.held, self._bytes_of(token_id)
        text = self._decoder.decode(new[:1])
        if text and waiting and not is_completed(text, waiting + new[:1]):
            self.place += not self._is_before
            text, self._is_before = text[1:], False
        place = self.place
        text += self._decoder.decode(new[1:])
        self.place += len(text)
        self._is_before = self._is_before and not text
        return place


def prompt_places(
    token_ids: Sequence[int], shown: str, bytes_of: Callable[[int], bytes], special: Collection[int]
) -> list[int]:
    """Where the tokens of a prompt begin in its text as it is shown, in characters.

    That may be other than what the tokens add up to: tokenizers add a space in front, also behind a special token, and
    special tokens are in the text or not.

    Args:
        token_ids: the prompt.
        shown: its text.
        bytes_of: what a token adds to a text; a special one, if it is shown.
        special: ids that may be left out.
    """
    places: list[int] = []
    place = 0
    for is_special, run in groupby(token_ids, special.__contains__):
        if is_special:
            for token_id in run:
                places.append(place)
                text = bytes_of(token_id).decode(errors="replace")
                place += len(text) if shown.startswith(text, place) else 0
            continue
        tokens, offsets = list(run), Offsets(bytes_of)
        begins = [offsets.next(token_id) for token_id in tokens]
        text = b"".join(map(bytes_of, tokens)).decode(errors="ignore")
        added = int(text.startswith(" ") and not shown.startswith(text, place) and shown.startswith(text[1:], place))
        places += [min(place + max(0, begin - added), len(shown)) for begin in begins]
        place = min(place + offsets.place - added, len(shown))
    return places
