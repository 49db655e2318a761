"""Who may come in: two limits over the whole server, decided here, without a word to the engine.

- ``max_requests``: unfinished requests, waiting or running.
- ``max_tokens``: prompt tokens of requests still in prefill. Divided by the prefill rate it bounds the time to the
  first token.

Rule 1: whoever is counted holds a ticket, and each of its requests leaves the count once, whatever ends it.

Rule 2: checking and counting is one step, with nothing in between. Requests are counted before any work is done for
them, tokens as soon as their number is known. Before that a call says how many it has at least, and is turned away
without being tokenised if already those are too many, when it comes and again when its turn to be tokenised comes.

Rule 3: a call of several prompts or choices costs as many requests and is let in whole or not at all.

Rule 4: while no tokens are counted, the token limit lets in one call of any size, or that call could never run.

Used by one thread. No clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence

QUEUE_FULL = "queue_full"
QUEUE_TOKENS = "queue_tokens"
REASONS = (QUEUE_FULL, QUEUE_TOKENS)
"""Why a call was turned away: the request limit, which is looked at first, or the token limit."""


class TurnedAway(Exception):
    """There is no room now; later there may be.

    Attributes:
        reason: one of ``REASONS``.
        limit: what is allowed.
        current: what is counted already.
        asked: what the call would add.
    """

    def __init__(self, reason: str, limit: int, current: int, asked: int) -> None:
        if reason == QUEUE_FULL:
            what = f"{current} requests are unfinished and {asked} more would exceed the limit of {limit}"
        else:
            what = f"{current} prompt tokens are waiting and {asked} more would exceed the limit of {limit}"
        super().__init__(f"the server is at its limit: {what}; try again later")
        self.reason = reason
        self.limit = limit
        self.current = current
        self.asked = asked


class Admission:
    """The counts.

    Args:
        max_requests: unfinished requests allowed; ``None`` for any number, 0 lets nobody in.
        max_tokens: prompt tokens in prefill allowed; ``None`` for any number.

    Attributes:
        num_requests, num_tokens: what is counted now.
        turned_away: calls refused so far, by reason.
    """

    def __init__(self, max_requests: int | None, max_tokens: int | None) -> None:
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self.num_requests = 0
        self.num_tokens = 0
        self.turned_away = dict.fromkeys(REASONS, 0)

    def admit(self, num_requests: int, fewest_tokens: int = 1) -> Ticket:
        """Count a call.

        Args:
            num_requests: generations it takes.
            fewest_tokens: prompt tokens that it has at least.

        Raises:
            TurnedAway: there is no room for it.
        """
        if self.max_requests is not None and self.num_requests + num_requests > self.max_requests:
            raise self._turn_away(QUEUE_FULL, self.max_requests, self.num_requests, num_requests)
        self.check_tokens(fewest_tokens)
        self.num_requests += num_requests
        return Ticket(self, num_requests, fewest_tokens)

    def check_tokens(self, asked: int) -> None:
        """Raise :class:`TurnedAway` if ``asked`` more prompt tokens are too many now."""
        if self.max_tokens is not None and self.num_tokens and self.num_tokens + asked > self.max_tokens:
            raise self._turn_away(QUEUE_TOKENS, self.max_tokens, self.num_tokens, asked)

    def _turn_away(self, reason: str, limit: int, current: int, asked: int) -> TurnedAway:
        self.turned_away[reason] += 1
        return TurnedAway(reason, limit, current, asked)


class Ticket:
    """The place of one call in the counts. Made by :meth:`Admission.admit`.

    Its requests are told apart by index. Everything may be called more than once, and in any order after
    :meth:`charge`; only the first time counts.
    """

    def __init__(self, admission: Admission, num_requests: int, fewest_tokens: int) -> None:
        self._admission = admission
        self._fewest_tokens = fewest_tokens
        self._unfinished = dict.fromkeys(range(num_requests))
        self._prefilling: dict[int, int] = {}
        """index -> prompt tokens, of requests without a first token."""

    @property
    def num_unfinished(self) -> int:
        """Requests that are counted."""
        return len(self._unfinished)

    def check(self) -> None:
        """Raise :class:`TurnedAway` if by now there is no room for the tokens that the call has at least."""
        self._admission.check_tokens(self._fewest_tokens)

    def charge(self, num_tokens: Sequence[int]) -> None:
        """Count the prompt tokens, by index.

        Raises:
            TurnedAway: there is no room for all of them; none is counted then, but the requests still are.
        """
        self._admission.check_tokens(sum(num_tokens))
        for index, count in enumerate(num_tokens):
            if index in self._unfinished:
                self._prefilling[index] = count
                self._admission.num_tokens += count

    def first_token(self, index: int) -> None:
        """A request left prefill."""
        self._admission.num_tokens -= self._prefilling.pop(index, 0)

    def end(self, index: int) -> None:
        """A request ended."""
        if index in self._unfinished:
            del self._unfinished[index]
            self._admission.num_requests -= 1
            self.first_token(index)

    def release(self) -> None:
        """The call ended: nothing of it is counted any more."""
        for index in list(self._unfinished):
            self.end(index)
