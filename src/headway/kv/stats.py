"""Counters of the KV layer. They only ever rise; rates are differences of two readings."""

from __future__ import annotations

from dataclasses import dataclass, field


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


@dataclass
class HitCounts:
    """What admissions found in the prefix index.

    Attributes:
        requests: admissions.
        hits: admissions that found at least one block.
        too_short: admissions that found nothing and could not have: no full block before their last token.
        query_tokens: tokens known at admission.
        hit_tokens: those of them that the prefix index of the device gave.
        host_tokens: those of them that were copied from the host tier.
    """

    requests: int = 0
    hits: int = 0
    too_short: int = 0
    query_tokens: int = 0
    hit_tokens: int = 0
    host_tokens: int = 0


@dataclass
class PrefixStats:
    """Reuse of prefixes, told apart from what preempted requests found again of their own work.

    Attributes:
        first: requests that never ran before; the hit rate to report is ``first.hit_tokens / first.query_tokens``.
        resumed: requests that were preempted.
    """

    first: HitCounts = field(default_factory=HitCounts)
    resumed: HitCounts = field(default_factory=HitCounts)
