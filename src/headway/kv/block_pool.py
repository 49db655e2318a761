"""The pool of KV blocks: who holds which, which are free, and which cached ones a prefix can find.

Definitions:

- A *block* is a number in 1..N; what it holds lies in the executor's tensors. Number 0 is the *null block*, a
  placeholder in block tables: it is never taken, freed, adopted or cached.
- A block is *held* while it has references (one per occurrence in a block table) and *free* otherwise.
- An *entry* of the prefix index leads from (cache group, block hash) to one block. A block has at most one entry. A
  block with an entry is *cached*, held or not; a free cached block can be found and adopted until it is taken.

Free blocks live in two places: those without an entry on a stack, cached ones in a queue by the time they were freed.
Taking empties the stack first, so cached content survives as long as anything else is there:

    stack: free, no entry             queue: free, cached
    +----+----+----+----+             +----+----+----+----+----+----+----+ - - - +
    | 12 | 11 | 10 |  7 |             |  4 | 9* |  2 |  8 |  9 |  3 |  6 |       |
    +----+----+----+----+             +----+----+----+----+----+----+----+ - - - +
                     ^ top              ^ head  * stale             ^ tail       ^ 2N
    freed last, taken first           freed first, taken first once the stack is empty

Block 9 was adopted from its old place (which only became stale) and freed again later. With ``take(6)`` the pool above
hands out 7, 10, 11, 12, 4, 2, and the entries of 4 and 2 are gone.

Blocks that were never handed out lie at the bottom of the stack, the lowest number on top. So what was written once is
written again before anything *untouched* is, and the touched blocks are always 1..m: an executor may reserve memory for
all of them and let the system give it as m grows. Untouched blocks in turn go before cached ones: until everything was
touched, no cached prefix is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from headway.kv.arrays import Bool, Int32, Int64
from headway.kv.errors import InvariantViolation, OutOfBlocks
from headway.kv.lru_queue import LRUQueue
from headway.kv.prefix_index import PrefixIndex
from headway.kv.stats import PoolStats

__all__ = ["BlockPool", "InvariantViolation", "OutOfBlocks"]


class BlockPool:
    """Equally large KV blocks for all cache groups, with a prefix index.

    Args:
        num_blocks: usable blocks N; ids 1..N.
        num_groups: cache groups, each with its own entries in the prefix index.
        enable_caching: without it, ``publish`` does nothing and no block is ever found.

    Attributes:
        num_blocks: N.
        version: rises when blocks become free, an entry is added, or the index is reset. While it stays the same,
            a request that did not fit still does not fit; blocks found earlier may be gone, though.
        stats: counters.
    """

    def __init__(self, num_blocks: int, *, num_groups: int = 1, enable_caching: bool = True) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks={num_blocks} must be at least 1 block")
        if num_groups < 1:
            raise ValueError(f"num_groups={num_groups} must be at least 1 group")
        self.num_blocks = num_blocks
        self.enable_caching = enable_caching
        self.version = 0
        self.stats = PoolStats()
        self._refs = np.zeros(num_blocks + 1, np.int32)
        self._stack: Int32 = np.arange(num_blocks, 0, -1, dtype=np.int32)
        self._top = num_blocks
        self._num_untouched = num_blocks
        self._queue = LRUQueue(num_blocks)
        self._index = PrefixIndex(num_blocks, num_groups)
        self._scratch = np.zeros(num_blocks + 1, np.int32)

    @property
    def ref_counts(self) -> Int32:
        """int32[N + 1], references per block; a read-only view."""
        counts: Int32 = self._refs.view()
        counts.flags.writeable = False
        return counts

    @property
    def num_free(self) -> int:
        """Blocks without a reference; ``take`` succeeds for any count up to this one."""
        return self._top + len(self._queue)

    @property
    def num_free_cached(self) -> int:
        """Free blocks whose content can still be found, until they are taken for something else."""
        return len(self._queue)

    @property
    def num_touched(self) -> int:
        """Blocks that were ever handed out: 1 up to this one. Never falls."""
        return self.num_blocks - self._num_untouched

    @property
    def is_cached(self) -> Bool:
        """bool[N + 1], whether a prefix can find the block, held or not; only to be read."""
        return self._index.cached

    @property
    def num_entries(self) -> int:
        """Entries of the prefix index, in all groups."""
        return len(self._index)

    # --- taking and giving back ---

    def take(self, count: int) -> Int32:
        """Hand out ``count`` blocks with one reference each.

        Free blocks without an entry come first, the one freed last before the others, then untouched ones (a new pool
        hands out 1, 2, 3, ...); then cached ones, the one freed longest ago first. Those lose their entries.

        Returns:
            int32[count].

        Raises:
            OutOfBlocks: if ``count > num_free``; nothing was taken.
        """
        if count < 0:
            raise ValueError(f"count={count} must be at least 0 blocks")
        if count > self.num_free:
            raise OutOfBlocks(count, self.num_free)
        rest = max(self._top - count, 0)
        block_ids = self._stack[rest : self._top][::-1].copy()
        self._top = rest
        self._num_untouched = min(self._num_untouched, rest)
        if len(block_ids) < count:
            evicted = self._queue.pop_oldest(count - len(block_ids))
            self._index.drop(evicted)
            self.stats.evicted += len(evicted)
            block_ids = np.concatenate([block_ids, evicted])
        self._refs[block_ids] = 1
        self.stats.taken += count
        return block_ids

    def free(self, block_ids: Int32) -> None:
        """Give back one reference per occurrence in ``block_ids``.

        Args:
            block_ids: int32[k], in the order in which they should be reused: pass the tail of a sequence first, since
                the head of a prefix is worth more. An id may occur several times; null blocks are skipped. A block
                becomes free at the occurrence that gives back its last reference.

        Raises:
            ValueError: if a block would get fewer than 0 references, or an id is not of this pool; nothing was freed.
        """
        ids = self._without_null(block_ids)
        np.subtract.at(self._refs, ids, 1)
        left = self._refs[ids]
        if (left < 0).any():
            np.add.at(self._refs, ids, 1)
            wrong = int(ids[left < 0][0])
            raise ValueError(
                f"block {wrong} is given back {int((ids == wrong).sum())} times but has {self._refs[wrong]} references"
            )
        freed = ids[(left == 0) & self._last_occurrence(ids)]
        if len(freed) == 0:
            return
        cached = self._index.cached[freed]
        self._queue.append(freed[cached])
        unhashed = freed[~cached]
        self._stack[self._top : self._top + len(unhashed)] = unhashed[::-1]
        self._top += len(unhashed)
        self.stats.freed += len(freed)
        self.version += 1

    def adopt(self, block_ids: Int32) -> None:
        """Add one reference per occurrence in ``block_ids``; blocks that were free are no longer.

        Args:
            block_ids: int32[k], held or cached blocks (a prefix hit); null blocks are skipped.

        Raises:
            ValueError: if a block is neither held nor cached, or an id is not of this pool; nothing was changed.
        """
        ids = self._without_null(block_ids)
        unheld = ids[self._refs[ids] == 0]
        cached = self._index.cached[unheld]
        if not cached.all():
            raise ValueError(f"block {unheld[~cached][0]} is free and has no content to adopt")
        revived = unheld[self._last_occurrence(unheld)]
        self._queue.remove(revived)
        np.add.at(self._refs, ids, 1)
        self.stats.adopted += len(ids)
        self.stats.revived += len(revived)

    # --- the prefix index ---

    def publish(self, group: int, hashes: Sequence[bytes], block_ids: Int32) -> None:
        """Make held blocks findable under their hashes.

        A hash that is there already keeps its block and the new block stays without an entry, so block tables never
        change. Null blocks are skipped; publishing a block again under the same hash does nothing.

        Args:
            group: cache group.
            hashes: one per block; of settled content only.
            block_ids: int32[k].

        Raises:
            ValueError: if a block is not held (nothing is published then), or already has another entry.
        """
        if len(hashes) != len(block_ids):
            raise ValueError(f"{len(hashes)} hashes for {len(block_ids)} blocks")
        if not self.enable_caching:
            return
        ids = self._without_null(block_ids)
        if not self._refs[ids].all():
            raise ValueError(f"block {ids[self._refs[ids] == 0][0]} is not held, so its content may change")
        num_added = self._index.add(group, hashes, block_ids)
        if num_added:
            self.stats.published += num_added
            self.version += 1

    def forget(self, block_ids: Int32) -> None:
        """Drop the entries of these blocks, held or free, since their content is not what their hash says."""
        ids = np.unique(self._without_null(block_ids))
        ids = ids[self._index.cached[ids]]
        if not len(ids):
            return
        self._index.drop(ids)
        free = ids[self._refs[ids] == 0]
        self._queue.remove(free)
        self._stack[self._top : self._top + len(free)] = free
        self._top += len(free)
        self.version += 1

    def lookup(self, group: int, block_hash: bytes) -> int:
        """The block cached under ``block_hash``, or 0."""
        return self._index.lookup(group, block_hash)

    def longest_run(self, group: int, hashes: Sequence[bytes], limit: int) -> Int32:
        """Blocks of the leading hashes that are all cached, at most ``limit`` of them; int32[k]."""
        return self._index.longest_run(group, hashes, limit)

    def num_unheld(self, block_ids: Int32) -> int:
        """How many of these distinct blocks have no reference, so that adopting them uses up free ones."""
        return int(np.count_nonzero((self._refs[block_ids] == 0) & (block_ids != 0)))

    def reset_cache(self) -> bool:
        """Drop all entries; afterwards ``take`` goes 1, 2, 3, ... as in a new pool, untouched blocks still last.

        Returns:
            False, with nothing done, while any block is held.
        """
        if self.num_free != self.num_blocks:
            return False
        self._index.clear()
        self._queue.clear()
        self._stack[:] = np.arange(self.num_blocks, 0, -1)
        self._top = self.num_blocks
        self.version += 1
        return True

    # --- conservation ---

    def rebuild(self, tables: Iterable[Int32]) -> None:
        """Agree with the block tables again after a call that an exception cut short.

        Args:
            tables: every block table there is. What they name is held, once per occurrence; all else is free, and
                nothing is cached, since there is no telling how far the index got.
        """
        counts = np.bincount(np.concatenate([np.zeros(0, np.int32), *tables]), minlength=self.num_blocks + 1)
        self._refs[1:] = counts[1:]
        self._index.clear()
        self._queue.clear()
        free = np.flatnonzero(self._refs[1:] == 0) + 1
        self._top = len(free)
        self._stack[: self._top] = free[::-1]
        touched = max(self.num_touched, int(np.flatnonzero(self._refs).max(initial=0)))
        self._num_untouched = self.num_blocks - touched
        num_lost = self.stats.taken + self.stats.revived - self.stats.freed - (self.num_blocks - self._top)
        self.stats.freed += max(num_lost, 0)
        self.stats.taken += max(-num_lost, 0)
        self.version += 1

    def check(self, tables: Iterable[Int32] | None = None) -> None:
        """Check that no block is lost, in two places, or wrongly indexed. O(N); for tests.

        Args:
            tables: every block table there is. If given, reference counts must equal the occurrences in them.

        Raises:
            InvariantViolation: with the numbers that do not agree.
        """
        num_held = int(np.count_nonzero(self._refs))
        if num_held + self.num_free != self.num_blocks:
            raise InvariantViolation(f"{num_held} held + {self.num_free} free blocks != {self.num_blocks}")
        stacked, queued = self._stack[: self._top], self._queue.block_ids()
        places = np.bincount(np.concatenate([stacked, queued]), minlength=self.num_blocks + 1)
        expected = (self._refs == 0).astype(np.int64)
        expected[0] = 0  # the null block is nowhere
        _compare("places among the free blocks", places, expected)
        untouched = np.arange(self.num_blocks, self.num_touched, -1)
        if not np.array_equal(self._stack[: self._num_untouched], untouched) or len(untouched) > self._top:
            raise InvariantViolation(f"blocks above {self.num_touched} were never taken but are not the last to go")
        num_misplaced = int(self._index.cached[stacked].sum() + (~self._index.cached[queued]).sum())
        if num_misplaced:
            raise InvariantViolation(f"{num_misplaced} cached blocks are on the stack or others in the queue")
        self._index.check()
        if tables is not None:
            occurrences = np.concatenate([np.zeros(0, np.int32), *tables])
            counts = np.bincount(occurrences, minlength=self.num_blocks + 1)
            counts[0] = 0  # null blocks are not counted
            _compare("references", self._refs, counts)

    # --- helpers ---

    def _without_null(self, block_ids: Int32) -> Int32:
        ids: Int32 = block_ids[block_ids != 0]
        if len(ids) and (ids.min() < 0 or ids.max() > self.num_blocks):
            wrong = int(ids[(ids < 0) | (ids > self.num_blocks)][0])
            raise ValueError(f"block {wrong} is not one of the {self.num_blocks} blocks of this pool")
        return ids

    def _last_occurrence(self, ids: Int32) -> Bool:
        """bool[k]: whether no equal id follows. Of equal indices, the last assignment stands."""
        order = np.arange(len(ids), dtype=np.int32)
        self._scratch[ids] = order
        last: Bool = self._scratch[ids] == order
        return last


def _compare(what: str, found: Int32 | Int64, expected: Int64) -> None:
    wrong = np.flatnonzero(found != expected)
    if len(wrong):
        block = int(wrong[0])
        raise InvariantViolation(
            f"block {block} has {found[block]} {what}, expected {expected[block]} ({len(wrong)} such blocks)"
        )
