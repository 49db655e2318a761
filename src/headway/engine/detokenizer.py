"""Token ids to text, one token at a time, without ever taking a character back.

Rule 1: text that was given out is never changed, and never contains half a character: bytes that do not make up a
whole character yet are held back until they do, or until it is certain that they never will (then it is U+FFFD).

Rule 2: what was given out, joined, is the decoding of prompt and output at once, less that of the prompt. So with a
SentencePiece vocabulary the output "▁world" keeps its space, since something stands before it. If the prompt ends
within a character, the output has that character if it completes it; a U+FFFD for it is the prompt's.

Tokens are joined as bytes, not as text, so nothing is ever decoded twice: a token costs one look-up and a few bytes.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from headway.core.plan import Int32

LONGEST_CHARACTER = 4
"""Bytes of the longest UTF-8 character."""

REPLACEMENT = "\ufffd"
"""Stands for bytes that are no character."""


class Vocabulary(Protocol):
    """What is needed of a tokenizer."""

    @property
    def special_token_ids(self) -> Collection[int]:
        """Ids that stand for no text."""

    def id_to_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes that one id adds to a text; empty for ids that are not known."""


class TokenBytes:
    """The bytes of tokens, looked up once each. Shared by all requests with the same setting.

    Args:
        vocabulary: where the bytes come from.
        skip_special_tokens: whether special tokens leave no text.
    """

    def __init__(self, vocabulary: Vocabulary, *, skip_special_tokens: bool) -> None:
        self._vocabulary = vocabulary
        self._texts: dict[int, str | None] = {}
        self._special = frozenset(vocabulary.special_token_ids)
        self._hidden = self._special if skip_special_tokens else frozenset()
        self._bytes = dict.fromkeys(sorted(self._hidden), b"")

    def of(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._vocabulary.id_to_bytes(token_id)
        return found

    def hidden_text_of(self, token_id: int) -> str | None:
        """The text of a special token that leaves none; ``None`` for all others."""
        return self.special_text_of(token_id) if token_id in self._hidden else None

    def special_text_of(self, token_id: int) -> str | None:
        """The text of a special token, whether it leaves it or not; ``None`` for all others."""
        if token_id not in self._special:
            return None
        return self._vocabulary.id_to_bytes(token_id).decode(errors="replace")

    def whole_text_of(self, token_id: int) -> str | None:
        """The text of a token that is whole characters; ``None`` for others."""
        if token_id not in self._texts:
            try:
                self._texts[token_id] = self.of(token_id).decode()
            except UnicodeDecodeError:
                self._texts[token_id] = None
        return self._texts[token_id]


class TextDecoder:
    """UTF-8 bytes to text, a few at a time; bytes that are no character become U+FFFD as soon as that is certain."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def held(self) -> bytes:
        """The beginning of one character, which the next bytes may complete."""
        return self._decoder.getstate()[0]

    def decode(self, data: bytes, *, final: bool = False) -> str:
        """Take in bytes; return the text that became certain, all of it if they are ``final``."""
        text = self._decoder.decode(data, final)
        held = self.held
        if held[:1] == b"\xed" and held[1:] >= b"\xa0":  # half a surrogate, which Python waits for in vain
            text += self._decoder.decode(b"", True)
        return text


class Detokenizer:
    """The text of one request.

    Args:
        token_bytes: shared by all requests with the same setting.
        prompt: the tokens before the output. If they end within a character, the output may complete it.
    """

    def __init__(self, token_bytes: TokenBytes, prompt: Sequence[int] = ()) -> None:
        self._token_bytes = token_bytes
        self._decoder = TextDecoder()
        self._begun_by_prompt = unfinished_end(token_bytes.of, prompt)
        """Bytes so far of a character that the prompt began, as long as it is neither whole nor broken."""
        self._decoder.decode(self._begun_by_prompt)
        self._num_held = len(self._begun_by_prompt)
        """Bytes of a character that is not whole yet."""
        self._tail: deque[int] = deque()
        """Bytes of each of the last tokens that may yet get more text."""

    @property
    def num_pending(self) -> int:
        """The last so many tokens have bytes of a character that is not whole yet, or stand behind such a token."""
        return len(self._tail)

    def push(self, token_id: int) -> str:
        """Take in a token; return the text that became certain, often that token's, sometimes none."""
        if not self._num_held:
            whole = self._token_bytes.whole_text_of(token_id)
            if whole is not None:
                return whole
        new = self._token_bytes.of(token_id)
        text = self._without_prompt(self._decoder.decode(new), new)
        self._tail.append(len(new))
        self._num_held = len(self._decoder.held)
        num_behind = sum(self._tail)
        while self._tail and num_behind - self._tail[0] >= self._num_held:
            num_behind -= self._tail.popleft()
        return text

    def flush(self) -> str:
        """The output ends here: return U+FFFD if it ends within a character of its own."""
        self._tail.clear()
        self._num_held = 0
        return self._without_prompt(self._decoder.decode(b"", final=True), b"")

    def _without_prompt(self, text: str, new: bytes) -> str:
        """New text less the U+FFFD for a character that the prompt began and nothing completed."""
        if not self._begun_by_prompt:
            return text
        begun = self._begun_by_prompt + new
        self._begun_by_prompt = b"" if text else begun
        return text[1:] if text and not is_completed(text, begun) else text


def is_completed(text: str, begun: bytes) -> bool:
    """Whether the first character of a text is one that bytes make up, and no sign that they were none.

    Args:
        text: what the bytes decode to; not empty.
        begun: the bytes.
    """
    return text[0] != REPLACEMENT or begun.startswith(REPLACEMENT.encode())


def unfinished_end(bytes_of: Callable[[int], bytes], tokens: Sequence[int] | Int32) -> bytes:
    """Bytes of the character within which a text ends; none if it ends with a whole one, or with bytes that are none.

    Args:
        bytes_of: what a token adds to the text.
        tokens: the text's.
    """
    end = b""
    for token_id in reversed(tokens):
        end = bytes_of(token_id) + end
        if len(end) >= LONGEST_CHARACTER:
            break
    decoder = TextDecoder()
    decoder.decode(end)
    return decoder.held
