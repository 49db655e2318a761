"""The second tier: KV blocks in host memory that keep the progress of swapped requests.

It is a pool like the device's, with its own index: a block whose content has a hash is stored once, however many
swapped requests share it, and stays findable after its last owner is gone until the space is needed (least recently
used first). Copies themselves are not made here: the caller puts the pairs into the step's plan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headway.kv.arrays import Int32
from headway.kv.block_pool import BlockPool


class HostTier:
    """Host blocks for all cache groups.

    Args:
        num_blocks: usable host blocks, at least 1.
        num_groups: cache groups.
        enable_caching: whether equal content is stored once and found again.

    Attributes:
        pool: the host blocks; its conservation check is the tier's.
    """

    def __init__(self, num_blocks: int, num_groups: int, *, enable_caching: bool) -> None:
        self.pool = BlockPool(num_blocks, num_groups=num_groups, enable_caching=enable_caching)
        self.num_groups = num_groups

    def store(self, tables: Sequence[Int32], hashes: Sequence[bytes]) -> tuple[tuple[Int32, ...], Int32] | None:
        """Make room for the content of a request's device blocks.

        Args:
            tables: per group int32[n], the device blocks that have content, equally long.
            hashes: of the leading full blocks, at most n; the rest is stored without being findable.

        Returns:
            Per group int32[n] host blocks, one reference each, and int32[k, 2] pairs (device, host) to be copied:
            what is on the host already is not copied again. ``None`` if it does not fit; nothing was changed then.
        """
        found = [self._find_each(group, hashes, len(table)) for group, table in enumerate(tables)]
        missing = sum(int(np.count_nonzero(blocks == 0)) for blocks in found)
        if missing + sum(self.pool.num_unheld(blocks) for blocks in found) > self.pool.num_free:
            return None
        for blocks in found:
            self.pool.adopt(blocks)
        taken = self.pool.take(missing)
        pairs = []
        for group, (table, blocks) in enumerate(zip(tables, found, strict=True)):
            gaps = np.flatnonzero(blocks == 0)
            blocks[gaps], taken = taken[: len(gaps)], taken[len(gaps) :]
            pairs.append(np.stack([table[gaps], blocks[gaps]], axis=1))
            hashed = gaps[gaps < len(hashes)]
            self.pool.publish(group, [hashes[place] for place in hashed.tolist()], blocks[hashed])
        return tuple(found), np.concatenate(pairs)

    def longest_run(self, hashes: Sequence[bytes], limit: int) -> tuple[Int32, ...]:
        """Per group, the leading blocks on the host, equally long and at most ``limit``."""
        runs = [self.pool.longest_run(group, hashes, limit) for group in range(self.num_groups)]
        shortest = min(map(len, runs))
        return tuple(run[:shortest] for run in runs)

    def release(self, tables: Sequence[Int32]) -> None:
        """Give back one reference to each of a request's host blocks, last index first."""
        self.pool.free(np.stack(tables, axis=1)[::-1].ravel())

    def _find_each(self, group: int, hashes: Sequence[bytes], length: int) -> Int32:
        """int32[length], the host block with the content of each device block; 0 where there is none."""
        blocks = np.zeros(length, np.int32)
        known = hashes[:length]
        blocks[: len(known)] = [self.pool.lookup(group, block_hash) for block_hash in known]
        return blocks
