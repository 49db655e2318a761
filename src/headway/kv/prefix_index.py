"""The prefix index: which block holds the content with a given hash."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from headway.kv.arrays import Int32
from headway.kv.errors import InvariantViolation


class PrefixIndex:
    """Maps (cache group, block hash) to one block, and each block back to its only entry.

    Attributes:
        cached: bool[N + 1], whether the block has an entry; others only read it.
    """

    def __init__(self, num_blocks: int, num_groups: int) -> None:
        self.cached = np.zeros(num_blocks + 1, np.bool_)
        self._blocks: tuple[dict[bytes, int], ...] = tuple({} for _ in range(num_groups))
        self._entries: dict[int, tuple[int, bytes]] = {}

    def __len__(self) -> int:
        """Entries in all groups."""
        return len(self._entries)

    def add(self, group: int, hashes: Sequence[bytes], block_ids: Int32) -> int:
        """Add the entries whose hash is new, skipping null blocks; returns how many.

        Raises:
            ValueError: if a block has another entry already; what came before it was added.
        """
        blocks, entries = self._blocks[group], self._entries
        added: list[int] = []
        try:
            for block_hash, block in zip(hashes, block_ids.tolist(), strict=True):
                if block == 0 or block_hash in blocks:
                    continue
                if block in entries:
                    raise ValueError(
                        f"block {block} of group {group} already has an entry, under another hash or group"
                    )
                blocks[block_hash] = block
                entries[block] = (group, block_hash)
                added.append(block)
        finally:
            self.cached[added] = True
        return len(added)

    def lookup(self, group: int, block_hash: bytes) -> int:
        """The block with this content, or 0."""
        return self._blocks[group].get(block_hash, 0)

    def longest_run(self, group: int, hashes: Sequence[bytes], limit: int) -> Int32:
        """Blocks of the leading hashes that all have an entry, at most ``limit`` of them; int32[k]."""
        blocks = self._blocks[group]
        run: list[int] = []
        for block_hash in islice(hashes, limit):
            block = blocks.get(block_hash, 0)
            if not block:
                break
            run.append(block)
        return np.array(run, np.int32)

    def drop(self, block_ids: Int32) -> None:
        """Remove the entries of these blocks; each must have one."""
        for block in block_ids.tolist():
            group, block_hash = self._entries.pop(block)
            del self._blocks[group][block_hash]
        self.cached[block_ids] = False

    def clear(self) -> None:
        """Remove all entries."""
        for blocks in self._blocks:
            blocks.clear()
        self._entries.clear()
        self.cached[:] = False

    def check(self) -> None:
        """Raise :class:`InvariantViolation` unless both directions and ``cached`` agree."""
        reverse = {
            block: (group, block_hash)
            for group, blocks in enumerate(self._blocks)
            for block_hash, block in blocks.items()
        }
        num_hashes = sum(map(len, self._blocks))
        if reverse != self._entries or num_hashes != len(self._entries):
            raise InvariantViolation(f"{num_hashes} hashes in the index do not mirror {len(self._entries)} entries")
        if np.flatnonzero(self.cached).tolist() != sorted(self._entries):
            raise InvariantViolation(f"{self.cached.sum()} blocks marked cached, {len(self._entries)} have an entry")
