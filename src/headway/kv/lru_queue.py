"""A queue of blocks, oldest first, from which any block can leave at any time: all of it array work."""

from __future__ import annotations

import numpy as np

from headway.kv.arrays import Int32


class LRUQueue:
    """Blocks in the order they were appended, each at most once.

    Deletion is lazy. ``position[block]`` says where in the buffer the block's live entry stands, or -1; an entry that
    stands anywhere else is stale and skipped. When the tail reaches the end of the buffer of 2N entries, live entries
    move to its front. At most N are live, so at least N appends lie between two moves: appending stays O(1) per
    block, amortised.

    Args:
        num_blocks: N; ids are 1..N.
    """

    def __init__(self, num_blocks: int) -> None:
        self._buffer = np.zeros(2 * num_blocks, np.int32)
        self._position = np.full(num_blocks + 1, -1, np.int32)
        self._head = 0
        self._tail = 0
        self._num_live = 0

    def __len__(self) -> int:
        """Blocks in the queue."""
        return self._num_live

    def append(self, block_ids: Int32) -> None:
        """Append distinct blocks that are not in the queue, in this order."""
        if self._tail + len(block_ids) > len(self._buffer):
            self._compact()
        head, self._tail = self._tail, self._tail + len(block_ids)
        self._buffer[head : self._tail] = block_ids
        self._position[block_ids] = np.arange(head, self._tail)
        self._num_live += len(block_ids)

    def remove(self, block_ids: Int32) -> None:
        """Remove distinct blocks that are in the queue."""
        self._position[block_ids] = -1
        self._num_live -= len(block_ids)

    def pop_oldest(self, count: int) -> Int32:
        """Remove and return the ``count`` oldest blocks, oldest first; ``count`` must not exceed ``len``."""
        parts: list[Int32] = []
        missing = width = count
        while missing:
            stop = min(self._head + width, self._tail)
            live = self._live(self._head, stop)[:missing]
            parts.append(self._buffer[live])
            missing -= len(live)
            self._head = stop if missing else int(live[-1]) + 1
            width *= 2  # so a long stretch of stale entries costs few rounds
        block_ids = np.concatenate([np.zeros(0, np.int32), *parts])
        self.remove(block_ids)
        return block_ids

    def block_ids(self) -> Int32:
        """All blocks in the queue, oldest first."""
        return self._buffer[self._live(self._head, self._tail)]

    def clear(self) -> None:
        """Remove all blocks."""
        self._position[:] = -1
        self._head = self._tail = self._num_live = 0

    def _live(self, start: int, stop: int) -> Int32:
        """Places of the live entries within ``start .. stop - 1``."""
        places = np.arange(start, stop, dtype=np.int32)
        live: Int32 = places[self._position[self._buffer[start:stop]] == places]
        return live

    def _compact(self) -> None:
        block_ids = self.block_ids()
        self._head, self._tail = 0, len(block_ids)
        self._buffer[: self._tail] = block_ids
        self._position[block_ids] = np.arange(self._tail)
