"""Counters of the KV layer. They only ever rise; rates are differences of two readings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class PoolStats:
    """What a block pool did since it was made, in blocks.

    Attributes:
        taken: blocks handed out by ``take``.
        freed: blocks whose last reference was given back.
        adopted: references added to blocks found in the prefix index.
        revived: those of them that went to a block nobody held, so ``taken + revived - freed`` blocks are held.
        published: entries added to the prefix index.
        evicted: entries dropped from it because their block was taken for other content.
    """

    taken: int = 0
    freed: int = 0
    adopted: int = 0
    revived: int = 0
    published: int = 0
    evicted: int = 0
