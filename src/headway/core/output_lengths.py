"""How long outputs were lately, to predict how long those of the running requests will be."""

from __future__ import annotations

from collections import deque

import numpy as np

from headway.core.plan import Int32, Int64

HISTORY = 1000
"""Finished requests whose output lengths predict the next ones."""


class OutputLengths:
    """Output lengths of the requests that ended last: the distribution that predictions are made from."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=HISTORY)
        self._sorted: Int64 = np.zeros(0, np.int64)
        self._stale = False

    def add(self, num_output_tokens: int) -> None:
        """A request ended by itself with this many tokens."""
        self._recent.append(num_output_tokens)
        self._stale = True

    def expected_rest(self, num_output: Int32, longest: Int32) -> Int64:
        """Expected tokens still to come of requests that have ``num_output`` already: int64[n].

        The mean of the recorded lengths above what a request has, rounded up, at most ``longest``; requests that
        outlived all records are expected to use up ``longest``.
        """
        if self._stale:
            self._sorted = np.sort(np.array(self._recent, np.int64))
            self._stale = False
        lengths = self._sorted
        above = np.searchsorted(lengths, num_output, side="right")
        count = len(lengths) - above
        totals = np.append(np.cumsum(lengths[::-1])[::-1], 0)[above]
        mean = np.where(count > 0, -(-totals // np.maximum(count, 1)), num_output + longest)
        rest: Int64 = np.clip(mean - num_output, 1, np.maximum(longest, 1)).astype(np.int64)
        return rest
