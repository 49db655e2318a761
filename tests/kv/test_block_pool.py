"""The rules of the block pool, one test each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from headway.kv import BlockPool, Int32, InvariantViolation, OutOfBlocks


def ids(*numbers: int) -> Int32:
    return np.array(numbers, np.int32)


def cached_pool(num_blocks: int, *hashes: bytes) -> BlockPool:
    """A pool whose blocks 1, 2, ... are free and cached under ``hashes``, the first one freed longest ago."""
    pool = BlockPool(num_blocks)
    blocks = pool.take(len(hashes))
    pool.publish(0, hashes, blocks)
    pool.free(blocks)
    return pool


# --- take ---


def test_a_new_pool_hands_out_blocks_from_1_upwards_and_never_the_null_block() -> None:
    pool = BlockPool(5)
    assert pool.take(2).tolist() == [1, 2]
    assert pool.take(3).tolist() == [3, 4, 5]
    assert pool.num_free == 0


def test_taken_blocks_have_one_reference_and_are_int32() -> None:
    pool = BlockPool(4)
    taken = pool.take(3)
    assert taken.dtype == np.int32
    assert pool.ref_counts.tolist() == [0, 1, 1, 1, 0]


def test_taking_more_than_is_free_raises_with_both_numbers_and_takes_nothing() -> None:
    pool = cached_pool(4, b"a", b"b")
    pool.take(1)
    with pytest.raises(OutOfBlocks) as error:
        pool.take(4)
    assert (error.value.need, error.value.free) == (4, 3)
    assert pool.num_free == 3
    assert pool.lookup(0, b"a") == 1
    pool.check()


def test_every_count_up_to_num_free_can_be_taken_even_if_all_free_blocks_are_cached() -> None:
    hashes = [bytes([number]) for number in range(8)]
    for count in range(9):
        pool = cached_pool(8, *hashes)
        assert len(pool.take(count)) == count
        pool.check()
        assert pool.num_free == 8 - count


def test_uncached_free_blocks_are_reused_before_cached_ones() -> None:
    pool = cached_pool(4, b"a", b"b")
    assert pool.take(2).tolist() == [3, 4]
    assert pool.lookup(0, b"a") == 1
    assert pool.take(1).tolist() == [1]
    assert pool.lookup(0, b"a") == 0
    assert pool.lookup(0, b"b") == 2


def test_written_blocks_without_content_go_before_untouched_ones_and_those_before_cached_ones() -> None:
    pool = BlockPool(8)
    first = pool.take(4)
    pool.publish(0, [b"a", b"b"], first[:2])
    pool.free(first)
    assert pool.num_touched == 4

    assert pool.take(2).tolist() == [3, 4]
    assert pool.num_touched == 4
    assert pool.take(5).tolist() == [5, 6, 7, 8, 1]
    assert pool.num_touched == 8
    pool.check()


def test_a_steady_load_touches_no_more_blocks_than_it_needs_at_a_time() -> None:
    pool = BlockPool(1000, enable_caching=False)
    held: list[Int32] = []
    for length in [5, 9, 2, 7] * 50:
        held.append(pool.take(length))
        if len(held) > 3:
            pool.free(held.pop(0))
        pool.check(held)

    assert pool.num_touched == 5 + 9 + 2 + 7  # the most that four tables have together


def test_what_was_touched_stays_touched_when_the_cache_is_reset() -> None:
    pool = cached_pool(9, b"a", b"b", b"c")
    assert pool.reset_cache()

    assert pool.take(3).tolist() == [1, 2, 3]
    assert pool.num_touched == 3


def test_the_uncached_block_freed_last_is_taken_first() -> None:
    pool = BlockPool(6)
    pool.take(6)
    pool.free(ids(2))
    pool.free(ids(5))
    assert pool.take(2).tolist() == [5, 2]


def test_the_cached_block_freed_longest_ago_is_evicted_first() -> None:
    pool = BlockPool(3)
    pool.publish(0, [b"a", b"b", b"c"], pool.take(3))
    pool.free(ids(2))
    pool.free(ids(3))
    pool.free(ids(1))
    assert pool.take(3).tolist() == [2, 3, 1]


def test_an_evicted_block_can_be_published_again_under_another_hash() -> None:
    pool = cached_pool(1, b"a")
    pool.publish(0, [b"b"], pool.take(1))
    assert (pool.lookup(0, b"a"), pool.lookup(0, b"b")) == (0, 1)
    pool.check()


def test_taking_0_blocks_does_nothing_and_a_negative_count_is_refused() -> None:
    pool = BlockPool(2)
    assert pool.take(0).tolist() == []
    with pytest.raises(ValueError, match="count=-1"):
        pool.take(-1)


# --- free ---


def test_the_first_block_of_one_call_is_reused_first_so_the_tail_goes_before_the_head() -> None:
    pool = BlockPool(6)
    table = pool.take(4)
    pool.free(table[::-1])
    assert pool.take(4).tolist() == [4, 3, 2, 1]

    pool = BlockPool(4)
    table = pool.take(4)
    pool.publish(0, [b"a", b"b", b"c", b"d"], table)
    pool.free(table[::-1])
    assert pool.take(2).tolist() == [4, 3]
    assert pool.longest_run(0, [b"a", b"b", b"c"], 9).tolist() == [1, 2]


def test_a_shared_block_is_free_only_when_its_last_holder_gives_it_back() -> None:
    pool = BlockPool(2)
    table = pool.take(1)
    pool.adopt(table)
    version = pool.version
    pool.free(table)
    assert (pool.num_free, pool.version) == (1, version)
    pool.free(table)
    assert (pool.num_free, pool.version) == (2, version + 1)


def test_an_id_may_occur_twice_in_one_free_and_counts_where_its_last_reference_goes() -> None:
    pool = BlockPool(3)
    pool.take(3)
    pool.adopt(ids(2))
    pool.free(ids(2, 3, 2))
    pool.check([ids(1)])
    assert pool.take(2).tolist() == [3, 2]


def test_null_blocks_are_never_freed_adopted_or_counted() -> None:
    pool = BlockPool(2)
    pool.take(1)
    pool.adopt(ids(0, 1, 0))
    pool.free(ids(0, 0, 1))
    assert pool.num_unheld(ids(0, 1, 2)) == 1
    pool.check([ids(0, 0, 1)])


@pytest.mark.parametrize("wrong", [(2,), (1, 1), (1, 2), (3, 1)], ids=str)
def test_freeing_more_often_than_held_raises_and_frees_nothing(wrong: tuple[int, ...]) -> None:
    pool = BlockPool(3)
    table = pool.take(1)
    with pytest.raises(ValueError, match="given back"):
        pool.free(ids(*wrong))
    pool.check([table])


@pytest.mark.parametrize("wrong", [-1, 4])
def test_an_id_outside_the_pool_is_refused(wrong: int) -> None:
    pool = BlockPool(3)
    table = pool.take(3)
    for method in (pool.free, pool.adopt):
        with pytest.raises(ValueError, match=f"block {wrong} is not one of the 3"):
            method(ids(1, wrong))
    pool.check([table])


# --- adopt ---


def test_adopting_a_free_cached_block_holds_it_and_keeps_its_entry() -> None:
    pool = cached_pool(3, b"a", b"b")
    pool.adopt(ids(1))
    assert pool.num_free == 2
    assert pool.take(2).tolist() == [3, 2]
    assert pool.lookup(0, b"a") == 1
    pool.check([ids(1), ids(3, 2)])


def test_a_block_adopted_and_freed_again_moves_to_the_young_end() -> None:
    pool = cached_pool(3, b"a", b"b", b"c")
    pool.adopt(ids(1))
    pool.free(ids(1))
    assert pool.take(3).tolist() == [2, 3, 1]


def test_a_free_block_that_occurs_twice_in_a_hit_is_one_free_block_less_and_two_references_more() -> None:
    pool = cached_pool(3, b"a")
    pool.adopt(ids(1, 1))
    assert (pool.num_free, pool.ref_counts.tolist()) == (2, [0, 2, 0, 0])
    pool.check([ids(1), ids(1)])


def test_adopting_a_free_block_without_content_raises_and_changes_nothing() -> None:
    pool = cached_pool(3, b"a")
    with pytest.raises(ValueError, match="block 2 is free and has no content"):
        pool.adopt(ids(1, 2))
    pool.check([])
    assert pool.num_free == 3


def test_num_unheld_counts_the_free_blocks_of_a_hit() -> None:
    pool = cached_pool(4, b"a", b"b", b"c")
    pool.adopt(ids(2))
    assert pool.num_unheld(ids(1, 2, 3)) == 2


def test_any_number_of_hits_fits_the_queue_and_keeps_its_order() -> None:
    pool = cached_pool(4, b"a", b"b", b"c", b"d")
    for number in range(50):  # each round leaves a stale queue entry
        block = ids(number % 3 + 1)
        pool.adopt(block)
        pool.free(block)
        pool.check([])
    assert pool.take(4).tolist() == [4, 3, 1, 2]


def test_a_long_stretch_of_stale_entries_is_skipped() -> None:
    pool = cached_pool(40, *(bytes([number]) for number in range(40)))
    pool.adopt(np.arange(1, 39, dtype=np.int32))
    assert pool.take(2).tolist() == [39, 40]
    pool.check()


# --- the prefix index ---


def test_the_first_block_published_under_a_hash_stays_and_the_second_has_no_entry() -> None:
    pool = BlockPool(3)
    pool.publish(0, [b"a", b"a"], pool.take(2))
    assert pool.lookup(0, b"a") == 1
    pool.free(ids(1, 2))
    assert pool.take(3).tolist() == [2, 3, 1]


def test_a_duplicate_can_be_published_once_the_first_block_is_gone() -> None:
    pool = BlockPool(2)
    table = pool.take(2)
    pool.publish(0, [b"a", b"a"], table)
    pool.free(ids(1))
    pool.take(1)
    pool.publish(0, [b"a"], ids(2))
    assert pool.lookup(0, b"a") == 2
    pool.check()


def test_groups_do_not_see_each_others_entries() -> None:
    pool = BlockPool(2, num_groups=2)
    pool.publish(1, [b"a"], pool.take(1))
    assert (pool.lookup(0, b"a"), pool.lookup(1, b"a")) == (0, 1)
    pool.publish(0, [b"a"], pool.take(1))
    assert (pool.lookup(0, b"a"), pool.lookup(1, b"a")) == (2, 1)
    pool.check()


def test_a_run_ends_at_the_first_hash_that_is_missing_or_at_the_limit() -> None:
    pool = cached_pool(4, b"a", b"b", b"c", b"d")
    assert pool.longest_run(0, [b"a", b"b", b"x", b"d"], 9).tolist() == [1, 2]
    assert pool.longest_run(0, [b"a", b"b", b"c"], 1).tolist() == [1]
    assert pool.longest_run(0, [b"x", b"a"], 9).tolist() == []
    assert pool.longest_run(0, [], 9).dtype == np.int32


def test_publishing_twice_or_a_null_block_changes_nothing() -> None:
    pool = BlockPool(2)
    table = pool.take(1)
    pool.publish(0, [b"a"], table)
    version = pool.version
    pool.publish(0, [b"a", b"b"], ids(1, 0))
    assert (pool.version, pool.num_entries, pool.lookup(0, b"b")) == (version, 1, 0)


def test_a_block_that_is_not_held_cannot_be_published() -> None:
    pool = BlockPool(3)
    table = pool.take(1)
    with pytest.raises(ValueError, match="block 2 is not held"):
        pool.publish(0, [b"a", b"b"], ids(1, 2))
    pool.check([table])
    assert pool.num_entries == 0


@pytest.mark.parametrize("group, block_hash", [(0, b"b"), (1, b"a")])
def test_a_block_cannot_have_a_second_entry(group: int, block_hash: bytes) -> None:
    pool = BlockPool(1, num_groups=2)
    table = pool.take(1)
    pool.publish(0, [b"a"], table)
    with pytest.raises(ValueError, match="already has an entry"):
        pool.publish(group, [block_hash], table)
    pool.check([table])


def test_hashes_and_blocks_must_be_equally_many() -> None:
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="1 hashes for 2 blocks"):
        pool.publish(0, [b"a"], pool.take(2))


def test_without_caching_nothing_is_ever_found() -> None:
    pool = BlockPool(2, enable_caching=False)
    table = pool.take(2)
    pool.publish(0, [b"a", b"b"], table)
    assert pool.longest_run(0, [b"a"], 1).tolist() == []
    pool.free(table)
    assert pool.take(2).tolist() == [1, 2]


def test_reset_drops_all_entries_but_only_while_nothing_is_held() -> None:
    pool = cached_pool(3, b"a", b"b")
    pool.adopt(ids(2))
    assert not pool.reset_cache()
    assert pool.lookup(0, b"a") == 1
    pool.free(ids(2))
    assert pool.reset_cache()
    assert pool.num_entries == 0
    pool.check([])
    assert pool.take(3).tolist() == [1, 2, 3]


# --- what others watch ---


def test_the_version_rises_with_free_blocks_and_new_entries_and_with_nothing_else() -> None:
    pool = BlockPool(4)
    table = pool.take(2)
    assert pool.version == 0
    pool.publish(0, [b"a"], table[:1])
    assert pool.version == 1
    pool.publish(0, [b"a"], table[1:])
    pool.adopt(table)
    pool.free(table)
    pool.longest_run(0, [b"a"], 1)
    assert pool.version == 1
    pool.free(table)
    assert pool.version == 2


def test_counters_add_up_to_what_happened() -> None:
    pool = cached_pool(4, b"a", b"b")
    pool.adopt(ids(1))
    pool.adopt(ids(1))
    pool.take(3)
    stats = pool.stats
    assert (stats.taken, stats.freed, stats.published, stats.evicted) == (5, 2, 2, 1)
    assert (stats.adopted, stats.revived) == (2, 1)
    assert stats.taken + stats.revived - stats.freed == pool.num_blocks - pool.num_free


def test_reference_counts_can_be_read_but_not_written_from_outside() -> None:
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="read-only"):
        pool.ref_counts[1] = 1


@pytest.mark.parametrize("sizes", [{"num_blocks": 0}, {"num_blocks": 1, "num_groups": 0}], ids=str)
def test_a_pool_without_blocks_or_groups_is_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        BlockPool(**sizes)


# --- check() itself: each kind of damage is noticed ---


def lose_a_free_block(pool: BlockPool) -> None:
    pool._top -= 1


def hold_a_free_block(pool: BlockPool) -> None:
    pool._refs[3] = 1


def list_a_block_twice(pool: BlockPool) -> None:
    pool._stack[0] = pool._stack[1]


def forget_an_entry(pool: BlockPool) -> None:
    pool._index._blocks[0].pop(b"a")


def lose_a_mark(pool: BlockPool) -> None:
    pool._index.cached[1] = False


def stack_a_cached_block(pool: BlockPool) -> None:
    pool._queue.remove(ids(1))
    pool._stack[pool._top] = 1
    pool._top += 1


def add_a_reference(pool: BlockPool) -> None:
    pool._refs[2] += 1


@pytest.mark.parametrize(
    "damage",
    [
        lose_a_free_block,
        hold_a_free_block,
        list_a_block_twice,
        forget_an_entry,
        lose_a_mark,
        stack_a_cached_block,
        add_a_reference,
    ],
)
def test_the_check_finds(damage: Callable[[BlockPool], None]) -> None:
    pool = BlockPool(6)
    pool.publish(0, [b"a", b"b"], pool.take(2))
    pool.free(ids(1))
    pool.check([ids(2)])
    damage(pool)
    with pytest.raises(InvariantViolation, match=r"\d"):
        pool.check([ids(2)])


def test_the_check_compares_references_only_with_the_tables_it_is_given() -> None:
    pool = BlockPool(2)
    pool.take(1)
    pool.check()
    for tables in ([], [ids(1, 1)], [ids(2)]):
        with pytest.raises(InvariantViolation, match="references"):
            pool.check(tables)


def test_forgotten_blocks_are_found_no_more_and_go_before_cached_ones() -> None:
    pool = cached_pool(4, b"a", b"b", b"c", b"d")
    pool.adopt(ids(1))
    version = pool.version

    pool.forget(ids(1, 3, 3, 0))

    assert [pool.lookup(0, name) for name in (b"a", b"b", b"c", b"d")] == [0, 2, 0, 4]
    assert pool.version > version
    pool.check([ids(1)])
    assert pool.take(1).tolist() == [3]
    pool.forget(ids(1, 2, 3, 4))  # those without an entry stay as they are
    assert (pool.num_entries, pool.num_free) == (0, 2)
    pool.check([ids(1, 3)])


def test_a_pool_agrees_with_the_tables_again_whatever_was_cut_short() -> None:
    pool = BlockPool(6)
    first, second = pool.take(3), pool.take(2)
    pool.publish(0, [b"a", b"b"], first[:2])
    pool.free(first[:1])
    before = pool.version
    pool._refs[4] = 7  # as if calls had ended halfway
    pool._index._blocks[0].clear()
    pool._top = 2

    pool.rebuild([first[1:], second[:1], first[2:]])

    pool.check([first[1:], second[:1], first[2:]])
    assert pool.ref_counts.tolist() == [0, 0, 1, 2, 1, 0, 0]
    assert (pool.num_free, pool.num_entries, pool.num_touched) == (3, 0, 5)
    assert pool.version > before
    assert pool.stats.taken + pool.stats.revived - pool.stats.freed == 3
    assert pool.take(3).tolist() == [1, 5, 6]
