"""The block pool against a model made of lists and loops, over random operations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headway.kv import BlockPool, Int32, OutOfBlocks

NUM_BLOCKS = 11
NUM_GROUPS = 2
HASHES = [bytes([number]) for number in range(8)]


class ModelPool:
    """What the pool must do, written down as slowly and plainly as possible."""

    def __init__(self) -> None:
        self.refs = dict.fromkeys(range(1, NUM_BLOCKS + 1), 0)
        self.stack = list(range(NUM_BLOCKS, 0, -1))
        self.queue: list[int] = []
        self.entries: dict[int, tuple[int, bytes]] = {}
        self.version = 0
        self.touched: set[int] = set()

    def take(self, count: int) -> list[int]:
        taken = []
        for _ in range(count):
            block = self.stack.pop() if self.stack else self.queue.pop(0)
            self.entries.pop(block, None)
            self.refs[block] = 1
            taken.append(block)
        self.touched.update(taken)
        return taken

    def free(self, blocks: list[int]) -> None:
        freed = []
        for block in blocks:
            self.refs[block] -= 1
            if self.refs[block] == 0:
                freed.append(block)
        self.queue += [block for block in freed if block in self.entries]
        self.stack += reversed([block for block in freed if block not in self.entries])
        self.version += bool(freed)

    def adopt(self, blocks: list[int]) -> None:
        for block in blocks:
            self.refs[block] += 1
            if block in self.queue:
                self.queue.remove(block)

    def lookup(self, group: int, block_hash: bytes) -> int:
        return next((block for block, entry in self.entries.items() if entry == (group, block_hash)), 0)

    def publish(self, group: int, hashes: list[bytes], blocks: list[int]) -> None:
        num_before = len(self.entries)
        for block_hash, block in zip(hashes, blocks, strict=True):
            if not self.lookup(group, block_hash):
                self.entries[block] = (group, block_hash)
        self.version += len(self.entries) > num_before

    def longest_run(self, group: int, hashes: list[bytes], limit: int) -> list[int]:
        run: list[int] = []
        for block_hash in hashes[:limit]:
            block = self.lookup(group, block_hash)
            if not block:
                break
            run.append(block)
        return run


class PoolMachine(RuleBasedStateMachine):
    """Both pools get the same calls; tables of pretended requests say who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS, num_groups=NUM_GROUPS)
        self.model = ModelPool()
        self.tables: list[Int32] = []

    @rule(count=st.integers(0, NUM_BLOCKS + 2))
    def take(self, count: int) -> None:
        if count > self.pool.num_free:
            with pytest.raises(OutOfBlocks):
                self.pool.take(count)
            return
        taken = self.pool.take(count)
        assert taken.tolist() == self.model.take(count)
        self.tables.append(taken)

    @rule()
    def take_all_that_is_free(self) -> None:
        self.take(self.pool.num_free)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free_some_tables_at_once(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.tables)))
        blocks = np.concatenate([self._remove_table(data)[::-1] for _ in range(count)])
        self.pool.free(np.append(blocks, np.int32(0)))
        self.model.free(blocks.tolist())

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free_the_end_of_a_table(self, data: st.DataObject) -> None:
        table = self._remove_table(data)
        keep = data.draw(st.integers(0, len(table)))
        self.tables.append(table[:keep])
        self.pool.free(table[keep:][::-1])
        self.model.free(table[keep:][::-1].tolist())

    @rule(
        group=st.integers(0, NUM_GROUPS - 1),
        hashes=st.lists(st.sampled_from(HASHES), unique=True),
        limit=st.integers(0, 8),
    )
    def adopt_a_hit(self, group: int, hashes: list[bytes], limit: int) -> None:
        run = self.pool.longest_run(group, hashes, limit)
        assert run.tolist() == self.model.longest_run(group, hashes, limit)
        assert self.pool.num_unheld(run) == sum(self.model.refs[block] == 0 for block in run.tolist())
        self.pool.adopt(run)
        self.model.adopt(run.tolist())
        self.tables.append(run)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def adopt_a_held_table(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        twice = np.concatenate([table, table])
        self.pool.adopt(twice)
        self.model.adopt(twice.tolist())
        self.tables += [table, table]

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), group=st.integers(0, NUM_GROUPS - 1))
    def publish_blocks_of_a_table(self, data: st.DataObject, group: int) -> None:
        table = data.draw(st.sampled_from(self.tables))
        blocks = [block for block in dict.fromkeys(table.tolist()) if block not in self.model.entries]
        hashes = [data.draw(st.sampled_from(HASHES)) for _ in blocks]
        self.pool.publish(group, hashes, np.array(blocks, np.int32))
        self.model.publish(group, hashes, blocks)

    @rule()
    def reset(self) -> None:
        held = any(self.model.refs.values())
        assert self.pool.reset_cache() is not held
        if not held:
            version, touched = self.model.version + 1, self.model.touched
            self.model = ModelPool()
            self.model.version, self.model.touched = version, touched

    @invariant()
    def both_agree_and_nothing_is_lost(self) -> None:
        self.pool.check(self.tables)
        assert self.pool.num_free == len(self.model.stack) + len(self.model.queue)
        assert dict(enumerate(self.pool.ref_counts.tolist()[1:], 1)) == self.model.refs
        assert self.pool.num_entries == len(self.model.entries)
        assert self.pool.version == self.model.version
        assert set(range(1, self.pool.num_touched + 1)) == self.model.touched
        for group in range(NUM_GROUPS):
            for block_hash in HASHES:
                assert self.pool.lookup(group, block_hash) == self.model.lookup(group, block_hash)

    def teardown(self) -> None:
        assert self.pool.take(self.pool.num_free).tolist() == self.model.take(len(self.model.stack + self.model.queue))

    def _remove_table(self, data: st.DataObject) -> Int32:
        return self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None, derandomize=True)


def test_the_pool_follows_the_model_through_thousands_of_hits_and_evictions() -> None:
    """A long run of one seed: the queue's buffer is filled and compacted many times."""
    rng = np.random.default_rng(7)
    pool, model, tables = BlockPool(NUM_BLOCKS, num_groups=NUM_GROUPS), ModelPool(), []
    for number in range(3000):
        while len(tables) > 3:
            table = tables.pop(int(rng.integers(len(tables))))[::-1]
            pool.free(table)
            model.free(table.tolist())
        hit = pool.longest_run(0, [HASHES[int(rng.integers(8))]], 1)
        pool.adopt(hit)
        model.adopt(hit.tolist())
        new = pool.take(int(rng.integers(0, min(3, pool.num_free) + 1)))
        assert new.tolist() == model.take(len(new)), f"operation {number}"
        hashes = [HASHES[int(rng.integers(8))] for _ in new]
        pool.publish(0, hashes, new)
        model.publish(0, hashes, new.tolist())
        tables.append(np.concatenate([hit, new]))
        pool.check(tables)
    assert pool.stats.evicted > 20 * NUM_BLOCKS
    assert pool.stats.revived > 20 * NUM_BLOCKS
