"""The output of one request as the client sees it: text, token ids and log probabilities, always cut at one place.

A token is let go once all of its text is. If a stop string ends the output, the tokens go with the text: those that
have some of the text before the cut are part of the output, those behind it are not, nor are their log probabilities.

Stop strings are looked for in the text with what special tokens stand for, that of the one which ended the output
included; clients get the text without those that are to leave none.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from headway.config import SamplingParams
from headway.core.logprobs import TokenLogprobs
from headway.engine.detokenizer import Detokenizer, TokenBytes
from headway.engine.outputs import Special
from headway.engine.stop_strings import Match, Run, StopStringFinder, shown_text


@dataclass(frozen=True)
class Piece:
    """What was let go since the last piece.

    Attributes:
        text: new text.
        token_ids: the tokens whose text is out with this piece.
        logprobs: per token of ``token_ids``; ``None`` if none were asked for.
        specials: special tokens among them that left no text, by their place in ``text``.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...] | None
    specials: tuple[Special, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it."""
        return not self.text and not self.token_ids


class TextStream:
    """Collects the tokens of one request and lets them go together with their text.

    Order of calls: :meth:`push` for every token, :meth:`finish` once; :meth:`take` whenever wanted. Once
    :attr:`stop` is set, everything pushed is ignored.

    Args:
        sampling: the stop strings and how to treat them.
        token_bytes: ``None`` leaves the text empty, and then no stop string can be found.
        prompt: its tokens.
    """

    def __init__(self, sampling: SamplingParams, token_bytes: TokenBytes | None, prompt: Sequence[int] = ()) -> None:
        self._sampling = sampling
        self._token_bytes = token_bytes
        self._detokenizer = Detokenizer(token_bytes, prompt) if token_bytes is not None else None
        self._cutter = _Cutter(sampling) if sampling.stop else None
        self._num_released = 0
        self._taken = (0, 0)
        """Tokens and pieces of text that were taken."""
        self._num_taken_chars = self._num_taken_specials = 0
        self._num_let_go = self._num_released_specials = 0
        """Characters of text and special tokens that were let go."""
        self._num_chars = 0
        """Characters of text that are certain, let go or not."""
        self._specials: list[Special] = []
        """Special tokens that left no text."""
        self._special_tokens: list[int] = []
        """Which tokens these are."""
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs | None] | None = [] if sampling.logprobs is not None else None
        self.stop: str | None = None
        """The stop string that ended the output."""

    @property
    def text(self) -> str:
        """All text let go so far."""
        return "".join(self._texts)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens let go so far."""
        return tuple(self._token_ids[: self._num_released])

    @property
    def logprobs(self) -> tuple[TokenLogprobs | None, ...] | None:
        """Their log probabilities, if asked for."""
        return None if self._logprobs is None else tuple(self._logprobs[: self._num_released])

    @property
    def specials(self) -> tuple[Special, ...]:
        """Special tokens let go so far that left no text."""
        return tuple(self._specials[: self._num_released_specials])

    def push(self, token_id: int, logprobs: TokenLogprobs | None = None, *, has_text: bool = True) -> None:
        """Take in the next token.

        Args:
            token_id: the token.
            logprobs: the executor's record about it.
            has_text: ``False`` for a token that ended the output and is to leave no text.
        """
        if self.stop is not None:
            return
        self._token_ids.append(token_id)
        if self._logprobs is not None:
            self._logprobs.append(logprobs)
        fresh: list[Run] = []
        num_pending = 0
        if self._detokenizer is not None and self._token_bytes is not None:
            if has_text:
                hidden = self._token_bytes.hidden_text_of(token_id)
                if hidden is not None:
                    self._specials.append((self._num_chars, hidden))
                    self._special_tokens.append(len(self._token_ids) - 1)
                fresh = [Run(self._detokenizer.push(token_id)), Run(hidden or "", hidden=True)]
            else:
                end = self._token_bytes.special_text_of(token_id)
                fresh = [Run(self._detokenizer.flush()), Run(end or "", hidden=True)]
            num_pending = self._detokenizer.num_pending
        self._let_go(fresh, len(self._token_ids) - num_pending, last=False)

    def finish(self, *, look_for_stop: bool = True) -> None:
        """No more tokens will come: let go of what was held back, unless a stop string is found in it.

        Args:
            look_for_stop: whether a stop string found only now may end the output.
        """
        if self.stop is not None:
            return
        fresh = self._detokenizer.flush() if self._detokenizer is not None else ""
        if self._cutter is not None and not look_for_stop:
            self._cutter.give_up()
        self._let_go([Run(fresh)], len(self._token_ids), last=True)

    def take(self) -> Piece:
        """What was let go since the last call."""
        num_tokens, num_texts = self._taken
        self._taken = (self._num_released, len(self._texts))
        released = slice(num_tokens, self._num_released)
        text, start = "".join(self._texts[num_texts:]), self._num_taken_chars
        self._num_taken_chars += len(text)
        specials = self._specials[self._num_taken_specials : self._num_released_specials]
        self._num_taken_specials = self._num_released_specials
        return Piece(
            text,
            tuple(self._token_ids[released]),
            None if self._logprobs is None else tuple(self._logprobs[released]),
            tuple((place - start, hidden) for place, hidden in specials),
        )

    def _let_go(self, fresh: list[Run], num_known: int, *, last: bool) -> None:
        """New text is certain, and with it all text of the first ``num_known`` tokens."""
        text = shown_text(fresh)
        self._num_chars += len(text)
        if self._cutter is None:
            self._num_released = num_known
        else:
            text, self._num_released, self.stop = self._cutter.feed(fresh, len(self._token_ids), num_known, last=last)
        if text:
            self._texts.append(text)
        self._let_go_specials()
        self._num_let_go += len(text)

    def _let_go_specials(self) -> None:
        """Special tokens go with the tokens around them, never to a place before text that has gone already: a broken
        character before them may have, while the text behind is held back."""
        first = self._num_released_specials
        self._num_released_specials = bisect_left(self._special_tokens, self._num_released)
        for index in range(first, self._num_released_specials):
            place, text = self._specials[index]
            self._specials[index] = (max(place, self._num_let_go), text)


class _Cutter:
    """Holds back text that may be part of a stop string, and the tokens that have some of that text."""

    def __init__(self, sampling: SamplingParams) -> None:
        self._finder = StopStringFinder(sampling.stop, keep=sampling.include_stop_str_in_output)
        self._keeps_stop = sampling.include_stop_str_in_output
        self._min_tokens = sampling.min_tokens
        self._num_chars = 0
        """Characters of text so far, those of hidden runs included, as in all places here."""
        self._starts: list[int] = []
        """Per token, where in the text it begins."""
        self._ends: list[int] = []
        """Per token whose text is known, where in the text it ends."""
        self._num_released = 0

    def give_up(self) -> None:
        """Let no stop string be found any more."""
        self._finder.floor = sys.maxsize

    def feed(self, fresh: list[Run], num_tokens: int, num_known: int, *, last: bool) -> tuple[str, int, str | None]:
        """Take in text, which is that of the first ``num_known`` of ``num_tokens`` tokens.

        Returns:
            The text that is let go; how many tokens are, in all; the stop string that was found.
        """
        self._starts.extend([self._num_chars] * (num_tokens - len(self._starts)))
        self._num_chars += sum(len(run.text) for run in fresh)
        self._ends.extend([self._num_chars] * (num_known - len(self._ends)))
        if num_tokens < self._min_tokens:
            self._finder.floor = max(self._finder.floor, self._num_chars)
        runs, match = self._finder.feed(fresh, last=last)
        while self._num_released < len(self._ends) and self._ends[self._num_released] <= self._finder.position:
            self._num_released += 1
        if match is None:
            return shown_text(runs), self._num_released, None
        self._cut(match, num_tokens)
        return shown_text(runs), self._num_released, match.stop

    def _cut(self, match: Match, num_tokens: int) -> None:
        """Release the tokens that have some of the text that is left."""
        cut = match.end if self._keeps_stop else match.start
        self._ends.extend([self._num_chars] * (num_tokens - len(self._ends)))
        for start, end in zip(self._starts[self._num_released :], self._ends[self._num_released :], strict=True):
            if start >= cut and end > cut:
                break
            self._num_released += 1
