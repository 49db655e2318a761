"""Cache groups: layers that share block tables. What a group does differently is four rules, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from headway.kv.arrays import Bool, Int32
from headway.kv.block_pool import BlockPool


class CacheGroup(Protocol):
    """The rules of one group. They are pure: they look at numbers and at the prefix index, and change nothing.

    Attributes:
        number: which of the request's block tables is this group's.
        block_size: tokens per block.
    """

    number: int
    block_size: int

    def num_blocks(self, num_tokens: int) -> int:
        """Entries in the block table of a request with ``num_tokens`` tokens."""

    def num_droppable(self, num_settled: int) -> int:
        """Leading blocks that no token after the first ``num_settled`` will read, so they may be given back."""

    def longest_hit(self, pool: BlockPool, hashes: Sequence[bytes], limit: int) -> Int32:
        """Where a hit may end: the table of the longest one, at most ``limit`` blocks; int32[k].

        From the end of a hit a request must be able to go on as if it had computed everything itself; blocks that
        it will not read may be null.
        """

    def worth_keeping(self, num_blocks: int) -> Bool:
        """Which blocks of a table another request could use after this one ends; bool[num_blocks]."""


class FullAttentionGroup:
    """Every token reads all tokens before it: nothing is ever droppable, and a hit is an unbroken leading run."""

    def __init__(self, number: int, block_size: int) -> None:
        self.number = number
        self.block_size = block_size

    def num_blocks(self, num_tokens: int) -> int:
        """One entry per started block."""
        return -(-num_tokens // self.block_size)

    def num_droppable(self, num_settled: int) -> int:
        """None, however many tokens are settled."""
        return 0

    def longest_hit(self, pool: BlockPool, hashes: Sequence[bytes], limit: int) -> Int32:
        """The leading blocks that are all cached; a hit may end after any of them."""
        return pool.longest_run(self.number, hashes, limit)

    def worth_keeping(self, num_blocks: int) -> Bool:
        """All: each block continues the prefix before it."""
        return np.ones(num_blocks, np.bool_)
