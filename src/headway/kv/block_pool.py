"""The pool of KV blocks: who holds which, which are free, and which cached ones a prefix can find.

Definitions:

- A *block* is a number in 1..N; what it holds lies in the executor's tensors. Number 0 is the *null block*, a
  placeholder in block tables: it is never taken, freed, adopted or cached.
- A block is *held* while it has references (one per occurrence in a block table) and *free* otherwise.
- An *entry* of the prefix index leads from (cache group, block hash) to one block. A block has at most one entry. A
  block with an entry is *cached*, held or not; a free cached block can be found and adopted until it is taken.

Free blocks live in two places. Never-cached ones are on a stack, cached ones in a queue ordered by when they were
freed. Taking empties the stack first, so cached content survives as long as anything else is there:

      stack (free, not cached)             queue (free, cached)
      +----+----+----+----+                +----+----+----+----+----+----+----+ - - - +
      | 12 | 11 | 10 |  7 |                |  4 |  9 |  2 |  9 |  5 |  3 |  6 |       |
      +----+----+----+----+                +----+----+----+----+----+----+----+ - - - +
                        ^ top                ^ head     ^ stale: 9 was       ^ tail     capacity 2N
      freed last, taken first                oldest,      adopted and        newest,
                                             taken after  freed again,       freed last
                                             the stack    so it is live
                                                          further back

Deleting from the queue is lazy. ``position[block]`` says where the block's live entry stands, or -1; an entry that
stands elsewhere is stale and skipped. When the tail reaches the end of the buffer, live entries move to its front. At
most N entries are live, so at least N appends lie between two moves: appending stays O(1) per block, amortised, and
all of it is array work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from headway.kv.arrays import Bool, Int32, Int64
from headway.kv.stats import PoolStats


class OutOfBlocks(RuntimeError):
    """More blocks were asked for than are free; nothing was taken.

    Attributes:
        need: blocks asked for.
        free: blocks that are free.
    """

    def __init__(self, need: int, free: int) -> None:
        super().__init__(f"{need} KV blocks needed, {free} free")
        self.need = need
        self.free = free


class InvariantViolation(AssertionError):
    """A conservation law does not hold: a bug in this program, never in its input."""


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
        ref_counts: int32[N + 1], references per block; a read-only view.
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
        self.ref_counts: Int32 = self._refs.view()
        self.ref_counts.flags.writeable = False
        self._stack: Int32 = np.arange(num_blocks, 0, -1, dtype=np.int32)
        self._top = num_blocks
        self._queue = np.zeros(2 * num_blocks, np.int32)
        self._head = 0
        self._tail = 0
        self._num_queued = 0
        self._position = np.full(num_blocks + 1, -1, np.int32)
        self._cached = np.zeros(num_blocks + 1, np.bool_)
        self._index: tuple[dict[bytes, int], ...] = tuple({} for _ in range(num_groups))
        self._entry: dict[int, tuple[int, bytes]] = {}
        self._scratch = np.zeros(num_blocks + 1, np.int32)

    @property
    def num_free(self) -> int:
        """Blocks without a reference; ``take`` succeeds for any count up to this one."""
        return self._top + self._num_queued

    @property
    def num_entries(self) -> int:
        """Entries of the prefix index, in all groups."""
        return len(self._entry)

    # --- taking and giving back ---

    def take(self, count: int) -> Int32:
        """Hand out ``count`` blocks with one reference each.

        Free blocks without an entry come first, the one freed last before the others (a new pool hands out 1, 2,
        3, ...); then cached ones, the one freed longest ago first. Those lose their entries.

        Returns:
            int32[count].

        Raises:
            OutOfBlocks: if ``count > num_free``; nothing was taken.
        """
        if count < 0:
            raise ValueError(f"count={count} must be at least 0 blocks")
        if count > self.num_free:
            raise OutOfBlocks(count, self.num_free)
        from_stack = min(count, self._top)
        rest = self._top - from_stack
        block_ids = self._stack[rest : self._top][::-1].copy()
        self._top = rest
        if count > from_stack:
            block_ids = np.concatenate([block_ids, self._evict(count - from_stack)])
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
        cached = self._cached[freed]
        self._enqueue(freed[cached])
        unhashed = freed[~cached]
        self._stack[self._top : self._top + len(unhashed)] = unhashed[::-1]
        self._top += len(unhashed)
        self.stats.freed += len(freed)
        self.version += 1

    def adopt(self, block_ids: Int32) -> None:
        """Add one reference per occurrence in ``block_ids``; blocks that were free leave the free structures.

        Args:
            block_ids: int32[k], held or cached blocks (a prefix hit); null blocks are skipped.

        Raises:
            ValueError: if a block is neither held nor cached, or an id is not of this pool; nothing was changed.
        """
        ids = self._without_null(block_ids)
        unheld = ids[self._refs[ids] == 0]
        if not self._cached[unheld].all():
            wrong = int(unheld[~self._cached[unheld]][0])
            raise ValueError(f"block {wrong} is free and has no content to adopt")
        num_revived = int(self._last_occurrence(unheld).sum())
        self._position[unheld] = -1
        self._num_queued -= num_revived
        np.add.at(self._refs, ids, 1)
        self.stats.adopted += len(ids)
        self.stats.revived += num_revived

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
        index = self._index[group]
        num_before = len(self._entry)
        for block_hash, block in zip(hashes, block_ids.tolist(), strict=True):
            if block == 0 or block_hash in index:
                continue
            if block in self._entry:
                raise ValueError(f"block {block} of group {group} already has an entry, under another hash or group")
            index[block_hash] = block
            self._entry[block] = (group, block_hash)
            self._cached[block] = True
        num_added = len(self._entry) - num_before
        if num_added:
            self.stats.published += num_added
            self.version += 1

    def lookup(self, group: int, block_hash: bytes) -> int:
        """The block cached under ``block_hash``, or 0."""
        return self._index[group].get(block_hash, 0)

    def longest_run(self, group: int, hashes: Sequence[bytes], limit: int) -> Int32:
        """Blocks of the leading hashes that are all cached, at most ``limit`` of them; int32[k]."""
        index = self._index[group]
        run: list[int] = []
        for block_hash in islice(hashes, limit):
            block = index.get(block_hash, 0)
            if not block:
                break
            run.append(block)
        return np.array(run, np.int32)

    def num_unheld(self, block_ids: Int32) -> int:
        """How many of these distinct blocks have no reference, so that adopting them uses up free ones."""
        return int(np.count_nonzero((self._refs[block_ids] == 0) & (block_ids != 0)))

    def reset_cache(self) -> bool:
        """Drop all entries; afterwards ``take`` goes 1, 2, 3, ... as in a new pool.

        Returns:
            False, with nothing done, while any block is held.
        """
        if self.num_free != self.num_blocks:
            return False
        for index in self._index:
            index.clear()
        self._entry.clear()
        self._cached[:] = False
        self._position[:] = -1
        self._stack[:] = np.arange(self.num_blocks, 0, -1)
        self._top = self.num_blocks
        self._head = self._tail = self._num_queued = 0
        self.version += 1
        return True

    # --- conservation ---

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
        self._check_free_blocks()
        self._check_index()
        if tables is not None:
            self._check_references(np.concatenate([np.zeros(0, np.int32), *tables]))

    def _check_free_blocks(self) -> None:
        queued = self._queue[self._head : self._tail]
        queued = queued[self._position[queued] == np.arange(self._head, self._tail)]
        if len(queued) != self._num_queued:
            raise InvariantViolation(f"{len(queued)} live queue entries, {self._num_queued} counted")
        free = np.concatenate([self._stack[: self._top], queued])
        places = np.bincount(free, minlength=self.num_blocks + 1)
        expected = self._refs == 0
        expected[0] = False  # the null block is in no free structure
        _compare("places among the free blocks", places, expected.astype(np.int64))
        stacked = self._stack[: self._top]
        if self._cached[stacked].any() or not self._cached[queued].all():
            raise InvariantViolation("a cached block is on the stack, or one without an entry in the queue")

    def _check_index(self) -> None:
        indexed = {
            block: (group, block_hash) for group, index in enumerate(self._index) for block_hash, block in index.items()
        }
        num_indexed = sum(len(index) for index in self._index)
        if indexed != self._entry or num_indexed != len(self._entry):
            raise InvariantViolation(f"{num_indexed} indexed hashes do not mirror the {len(self._entry)} entries")
        marked = np.flatnonzero(self._cached).tolist()
        if marked != sorted(self._entry):
            raise InvariantViolation(f"{len(marked)} blocks marked cached, {len(self._entry)} entries")

    def _check_references(self, occurrences: Int32) -> None:
        counts = np.bincount(occurrences, minlength=self.num_blocks + 1)
        counts[0] = 0  # null blocks are not counted
        _compare("references", self._refs, counts)

    # --- helpers: all of them array work, but for entries that are dropped ---

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

    def _enqueue(self, block_ids: Int32) -> None:
        """Append distinct cached blocks that just became free."""
        count = len(block_ids)
        if self._tail + count > len(self._queue):
            self._compact()
        self._queue[self._tail : self._tail + count] = block_ids
        self._position[block_ids] = np.arange(self._tail, self._tail + count)
        self._tail += count
        self._num_queued += count

    def _compact(self) -> None:
        """Move live queue entries to the front of the buffer."""
        queued = self._queue[self._head : self._tail]
        live = queued[self._position[queued] == np.arange(self._head, self._tail)]
        self._head, self._tail = 0, len(live)
        self._queue[: self._tail] = live
        self._position[live] = np.arange(self._tail)

    def _evict(self, count: int) -> Int32:
        """Take the ``count`` oldest blocks off the queue (there are that many) and drop their entries."""
        parts: list[Int32] = []
        missing = width = count
        while missing:
            stop = min(self._head + width, self._tail)
            queued = self._queue[self._head : stop]
            live = np.flatnonzero(self._position[queued] == np.arange(self._head, stop))[:missing]
            parts.append(queued[live])
            missing -= len(live)
            self._head = stop if missing else self._head + int(live[-1]) + 1
            width *= 2  # a long stretch of stale entries costs few rounds
        block_ids = np.concatenate(parts)
        self._position[block_ids] = -1
        self._num_queued -= count
        self._cached[block_ids] = False
        for block in block_ids.tolist():
            group, block_hash = self._entry.pop(block)
            del self._index[group][block_hash]
        self.stats.evicted += count
        return block_ids


def _compare(what: str, found: Int32 | Int64, expected: Int64) -> None:
    wrong = np.flatnonzero(found != expected)
    if len(wrong):
        block = int(wrong[0])
        raise InvariantViolation(
            f"block {block} has {found[block]} {what}, expected {expected[block]} ({len(wrong)} such blocks)"
        )
