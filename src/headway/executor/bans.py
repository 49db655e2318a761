"""Token sequences that must not come: the last token of each is impossible where the others stand before it.

What stands before is read from the token table in the step that samples, and only the output counts. So nothing is kept
of what a request has said, and there is nothing to take back or to rebuild.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from torch import Tensor

from headway.core.plan import Int64
from headway.executor.tensors import to_device


class Bans:
    """The banned sequences of one request.

    Args:
        sequences: token ids, at least one each.

    Attributes:
        longest: so many tokens of the output have to be known.
    """

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self._always: list[int] = []
        self._after: dict[int, list[tuple[list[int], int]]] = {}
        """Last token of what must stand before -> all of it, and what is banned behind it."""
        self.longest = 0
        for *before, last in sequences:
            self.longest = max(self.longest, len(before))
            if before:
                self._after.setdefault(before[-1], []).append((before, last))
            else:
                self._always.append(last)

    def after(self, output: list[int]) -> Int64:
        """int64[k]: tokens that must not follow this end of an output of ``longest`` tokens, or a shorter output."""
        rules = self._after.get(output[-1], ()) if output else ()
        return np.array(self._always + [last for before, last in rules if output[-len(before) :] == before], np.int64)


def banned_tokens(
    bans: Sequence[Bans], slots: Int64, num_prompt: Int64, num_tokens: Int64, token_table: Tensor
) -> list[Int64]:
    """Token ids that must not come next, for each of ``k`` rows.

    Args:
        bans: per row.
        slots, num_prompt, num_tokens: int64[k], rows of the token table; tokens of the prompt, and all so far.
        token_table: int32[slots, max_model_len].
    """
    width = max((each.longest for each in bans), default=0)
    if width == 0:
        return [each.after([]) for each in bans]
    places = np.maximum(num_tokens[:, None] - np.arange(width, 0, -1), 0)
    device = token_table.device
    ends = token_table[to_device(slots[:, None], device), to_device(places, device)].tolist()
    counts = np.minimum(num_tokens - num_prompt, width).tolist()
    return [each.after(end[width - count :]) for each, end, count in zip(bans, ends, counts, strict=True)]
