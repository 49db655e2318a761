"""One pool, several cache groups: what concerns all tables of a request at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headway.config import CacheConfig
from headway.kv.arrays import Int32
from headway.kv.block_pool import BlockPool
from headway.kv.groups import CacheGroup, FullAttentionGroup
from headway.kv.host_tier import HostTier
from headway.kv.stats import PrefixStats


class KVCoordinator:
    """Finds, publishes and orders blocks for all cache groups of a request.

    The caller takes, adopts and frees blocks of ``pool`` itself. In the life of a request: ``find_hit``;
    ``pool.adopt`` the hit and ``count_hit``; ``pool.take`` as it grows; ``publish`` each block once its tokens are
    settled; in the end ``pool.free(release_order(tables))``.

    Attributes:
        pool: the blocks, ``config.num_blocks`` usable ones for all groups together.
        groups: the groups, in the order of a request's block tables.
        block_size: tokens per block, hence also the unit of a hit: a shared prefix below it is never found.
        num_groups: number of groups.
        stats: what admissions found in the prefix index.
        host: the tier that swapped requests' blocks go to; ``None`` if there is none.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.block_size = config.block_size
        self.num_groups = config.num_groups
        self.pool = BlockPool(
            config.num_blocks, num_groups=config.num_groups, enable_caching=config.enable_prefix_caching
        )
        self.groups: tuple[CacheGroup, ...] = tuple(
            FullAttentionGroup(number, config.block_size) for number in range(config.num_groups)
        )
        self.stats = PrefixStats()
        self.host = (
            HostTier(config.num_host_blocks, config.num_groups, enable_caching=config.enable_prefix_caching)
            if config.num_host_blocks
            else None
        )

    def find_hit(self, hashes: Sequence[bytes], limit: int) -> tuple[Int32, ...]:
        """The longest prefix that every group can go on from. Changes and counts nothing.

        Args:
            hashes: the request's block hashes from the first block on.
            limit: most blocks to find. With n known tokens pass ``(n - 1) // block_size``, so that one is left to
                compute.

        Returns:
            Per group int32[k], equally long; held or cached blocks, and null ones where the group needs none.
        """
        # A group's hit may shrink when its limit does, so groups are asked until they agree. Each round that does
        # not end the search shortens the limit, so it ends.
        while True:
            tables = tuple(group.longest_hit(self.pool, hashes, limit) for group in self.groups)
            shortest = min(map(len, tables))
            if all(len(table) == shortest for table in tables):
                return tables
            limit = shortest

    def find_each(self, hashes: Sequence[bytes], limit: int) -> tuple[Int32, ...]:
        """Which of a request's first ``limit`` blocks the index has, wherever they are.

        Returns:
            Per group int32[limit]; 0 where it has none. Unlike a hit this may have gaps, for blocks that come from
            the host.
        """
        tables = tuple(np.zeros(limit, np.int32) for _ in self.groups)
        for group, table in zip(self.groups, tables, strict=True):
            known = hashes[:limit]
            table[: len(known)] = [self.pool.lookup(group.number, block_hash) for block_hash in known]
        return tables

    def count_hit(self, num_query_tokens: int, num_hit_tokens: int, num_host_tokens: int = 0, *, first: bool) -> None:
        """Count an admission that really happened.

        Args:
            num_query_tokens: known tokens of the request.
            num_hit_tokens: how many of them were taken from the prefix index.
            num_host_tokens: how many more were copied from the host tier.
            first: whether the request never ran before. What a preempted one finds again is its own work, not
                reuse, and is counted apart.
        """
        counts = self.stats.first if first else self.stats.resumed
        counts.requests += 1
        counts.query_tokens += num_query_tokens
        counts.hit_tokens += num_hit_tokens
        counts.host_tokens += num_host_tokens
        if num_hit_tokens:
            counts.hits += 1
        elif num_query_tokens <= self.block_size:
            counts.too_short += 1

    def publish(self, start: int, hashes: Sequence[bytes], tables: Sequence[Int32]) -> None:
        """Make blocks of one request findable, in all groups.

        Args:
            start: index of the first block.
            hashes: of blocks ``start``, ``start + 1``, ...; their tokens must be settled.
            tables: per group, the request's block table (entries beyond the last hash are not looked at).
        """
        for group, table in zip(self.groups, tables, strict=True):
            self.pool.publish(group.number, hashes, table[start : start + len(hashes)])

    def release_order(self, tables: Sequence[Int32]) -> Int32:
        """All blocks of a request in the order to give them back: last index first, group by group within an index.

        Args:
            tables: per group int32[held], equally long.

        Returns:
            int32[held * num_groups].
        """
        return np.stack(tables, axis=1)[::-1].ravel()
