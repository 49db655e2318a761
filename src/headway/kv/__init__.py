"""KV memory, logically: which blocks are held, free or cached. No tensors, no torch.

The scheduler takes and gives back blocks of a :class:`BlockPool`; :class:`PoolStats` counts what it did.
"""

from headway.kv.block_pool import BlockPool, InvariantViolation, OutOfBlocks
from headway.kv.stats import PoolStats

__all__ = ["BlockPool", "InvariantViolation", "OutOfBlocks", "PoolStats"]
