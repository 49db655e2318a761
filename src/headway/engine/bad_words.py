"""Words that must not come, as the token sequences that would write them.

A word comes as one sequence of tokens at the beginning of a text, as another behind a space, and within a word, with a
SentencePiece vocabulary, as a third. Each of them is banned. The same letters in any other split are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headway.models.loading import Tokenizer

_ANCHOR = "\n"
"""Something that no vocabulary joins with the word behind it."""

Tokens = tuple[int, ...]


def banned_sequences(words: Iterable[str], tokenizer: Tokenizer) -> tuple[Tokens, ...]:
    """The token sequences of words, each once; none that cannot come because one in it is banned.

    Args:
        words: not empty each. White space in front does not count, unless there is nothing else.
        tokenizer: of the model.
    """
    found = dict.fromkeys(tokens for word in words for tokens in _ways_to_write(word, tokenizer) if tokens)
    return tuple(tokens for tokens in found if not any(_holds(tokens, other) for other in found if other != tokens))


def _ways_to_write(word: str, tokenizer: Tokenizer) -> Iterable[Tokens]:
    bare = word.lstrip() or word

    def encode(text: str) -> Tokens:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    yield encode(bare)
    yield encode(" " + bare)
    anchor, behind = encode(_ANCHOR), encode(_ANCHOR + bare)
    if behind[: len(anchor)] == anchor:
        yield behind[len(anchor) :]


def _holds(tokens: Sequence[int], other: Sequence[int]) -> bool:
    """Whether ``other`` stands somewhere in ``tokens``."""
    return any(tokens[start : start + len(other)] == other for start in range(len(tokens) - len(other) + 1))
