"""KV memory, logically: which blocks are held, free or cached. No tensors, no torch.

- ``block_pool``: references and free blocks; it owns an ``lru_queue`` and a ``prefix_index``.
- ``hashing``: what a cached block is found by.
- ``groups``: the rules in which kinds of attention differ.
- ``coordinator``: a request's tables in all groups at once.
- ``stats``: counters.
"""

from headway.kv.arrays import Int32
from headway.kv.block_pool import BlockPool
from headway.kv.coordinator import KVCoordinator
from headway.kv.errors import InvariantViolation, OutOfBlocks
from headway.kv.groups import CacheGroup, FullAttentionGroup
from headway.kv.hashing import KeyPart, chain_root, extend_hashes, hash_blocks
from headway.kv.stats import HitCounts, PoolStats, PrefixStats

__all__ = [
    "BlockPool",
    "CacheGroup",
    "FullAttentionGroup",
    "HitCounts",
    "Int32",
    "InvariantViolation",
    "KVCoordinator",
    "KeyPart",
    "OutOfBlocks",
    "PoolStats",
    "PrefixStats",
    "chain_root",
    "extend_hashes",
    "hash_blocks",
]
