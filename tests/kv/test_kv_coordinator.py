"""Cache groups and their coordinator."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pytest

from headway.config import CacheConfig
from headway.kv import (
    BlockPool,
    FullAttentionGroup,
    HitCounts,
    Int32,
    KeyPart,
    KVCoordinator,
    PrefixStats,
    chain_root,
    extend_hashes,
)

BLOCK_SIZE = 4


def make_coordinator(num_blocks: int = 20, *, num_groups: int = 1, caching: bool = True) -> KVCoordinator:
    return KVCoordinator(
        CacheConfig(block_size=BLOCK_SIZE, num_blocks=num_blocks, num_groups=num_groups, enable_prefix_caching=caching)
    )


def hashes_of(prompt: Int32, salt: str = "") -> list[bytes]:
    hashes: list[bytes] = []
    parts = [KeyPart("salt", salt.encode())] if salt else []
    root = chain_root(parts, block_size=BLOCK_SIZE)
    extend_hashes(hashes, root, prompt, BLOCK_SIZE, len(prompt) // BLOCK_SIZE)
    return hashes


def run_request(kv: KVCoordinator, prompt: Int32, salt: str = "") -> int:
    """Serve a prompt from hit to release; returns the tokens it found."""
    hashes = hashes_of(prompt, salt)
    hit = kv.find_hit(hashes, (len(prompt) - 1) // BLOCK_SIZE)
    num_blocks = kv.groups[0].num_blocks(len(prompt))
    tables = []
    for table in hit:
        kv.pool.adopt(table)
        tables.append(np.concatenate([table, kv.pool.take(num_blocks - len(table))]))
    kv.count_hit(len(prompt), len(hit[0]) * BLOCK_SIZE, first=True)
    kv.publish(0, hashes, tables)
    kv.pool.check(tables)
    kv.pool.free(kv.release_order(tables))
    kv.pool.check([])
    return len(hit[0]) * BLOCK_SIZE


# --- the rules of full attention ---


@pytest.mark.parametrize("num_tokens, num_blocks", [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_full_attention_needs_a_block_for_every_started_one(num_tokens: int, num_blocks: int) -> None:
    assert FullAttentionGroup(0, BLOCK_SIZE).num_blocks(num_tokens) == num_blocks


def test_full_attention_drops_nothing_and_keeps_everything() -> None:
    group = FullAttentionGroup(0, BLOCK_SIZE)
    assert group.num_droppable(1000) == 0
    assert group.worth_keeping(3).tolist() == [True, True, True]


def test_a_full_attention_hit_ends_before_the_first_gap() -> None:
    pool = BlockPool(4, num_groups=2)
    pool.publish(1, [b"a", b"b", b"d"], pool.take(3))
    group = FullAttentionGroup(1, BLOCK_SIZE)
    assert group.longest_hit(pool, [b"a", b"b", b"c", b"d"], 4).tolist() == [1, 2]
    assert group.longest_hit(pool, [b"a", b"b"], 1).tolist() == [1]


# --- hits ---


def test_a_salt_shares_within_itself_and_with_nobody_else() -> None:
    kv = make_coordinator()
    prompt = np.arange(10, dtype=np.int32)
    found = [run_request(kv, prompt, salt) for salt in ("A", "A", "B", "", "")]
    assert found == [0, 8, 0, 0, 8]


@pytest.mark.parametrize("num_tokens, found", [(8, 4), (9, 8), (4, 0), (3, 0)])
def test_a_wholly_cached_prompt_leaves_at_least_one_token_to_compute(num_tokens: int, found: int) -> None:
    kv = make_coordinator()
    prompt = np.arange(num_tokens, dtype=np.int32)
    run_request(kv, prompt)
    assert run_request(kv, prompt) == found


def test_prompts_share_as_many_full_blocks_as_they_have_in_common() -> None:
    kv = make_coordinator()
    prompt = np.arange(16, dtype=np.int32)
    other = prompt.copy()
    other[9] = 99
    run_request(kv, prompt)
    assert run_request(kv, other) == 8


def test_without_caching_nothing_is_found() -> None:
    kv = make_coordinator(caching=False)
    prompt = np.arange(16, dtype=np.int32)
    assert [run_request(kv, prompt), run_request(kv, prompt)] == [0, 0]


def test_a_hit_is_no_longer_than_the_shortest_of_all_groups() -> None:
    kv = make_coordinator(num_groups=3)
    hashes = [b"a", b"b", b"c"]
    for group, length in enumerate([3, 1, 2]):
        kv.pool.publish(group, hashes[:length], kv.pool.take(length))
    assert [table.tolist() for table in kv.find_hit(hashes, 3)] == [[1], [4], [5]]
    assert [table.tolist() for table in kv.find_hit(hashes, 0)] == [[], [], []]


class AlignedGroup(FullAttentionGroup):
    """A group whose hits may end only after every ``unit`` blocks."""

    def __init__(self, number: int, unit: int) -> None:
        super().__init__(number, BLOCK_SIZE)
        self.unit = unit

    def longest_hit(self, pool: BlockPool, hashes: Sequence[bytes], limit: int) -> Int32:
        run = super().longest_hit(pool, hashes, limit)
        return run[: len(run) // self.unit * self.unit]


@pytest.mark.parametrize("limit, length", [(13, 12), (12, 12), (11, 6), (6, 6), (5, 0)])
def test_groups_that_cannot_end_at_each_others_length_agree_on_a_shorter_hit(limit: int, length: int) -> None:
    kv = make_coordinator(num_blocks=30, num_groups=2)
    kv.groups = (AlignedGroup(0, 2), AlignedGroup(1, 3))
    hashes = [bytes([number]) for number in range(14)]
    for group in range(2):
        kv.pool.publish(group, hashes, kv.pool.take(14))
    assert [len(table) for table in kv.find_hit(hashes, limit)] == [length, length]


def test_looking_for_a_hit_changes_and_counts_nothing() -> None:
    kv = make_coordinator()
    prompt = np.arange(12, dtype=np.int32)
    run_request(kv, prompt)
    before = copy.deepcopy((kv.stats, kv.pool.stats, kv.pool.version, kv.pool.num_free, kv.pool.ref_counts))
    assert len(kv.find_hit(hashes_of(prompt), 3)[0]) == 3
    after = (kv.stats, kv.pool.stats, kv.pool.version, kv.pool.num_free, kv.pool.ref_counts)
    assert before[:4] == after[:4]
    assert np.array_equal(before[4], after[4])


# --- publishing and releasing ---


def test_publishing_begins_at_the_given_block_and_ends_with_the_hashes() -> None:
    kv = make_coordinator(num_groups=2)
    tables = [kv.pool.take(4), kv.pool.take(4)]
    kv.publish(1, [b"b", b"c"], tables)
    assert [kv.pool.lookup(0, block_hash) for block_hash in (b"a", b"b", b"c")] == [0, 2, 3]
    assert [kv.pool.lookup(1, block_hash) for block_hash in (b"a", b"b", b"c")] == [0, 6, 7]


def test_blocks_are_released_last_index_first_and_group_by_group_within_an_index() -> None:
    kv = make_coordinator(num_groups=2)
    order = kv.release_order([np.array([1, 3, 5], np.int32), np.array([2, 4, 6], np.int32)])
    assert order.tolist() == [5, 6, 3, 4, 1, 2]
    assert order.dtype == np.int32


def test_the_beginning_of_a_prefix_outlives_its_end() -> None:
    kv = make_coordinator(num_blocks=4)
    prompt = np.arange(17, dtype=np.int32)[:16]
    run_request(kv, prompt)
    kv.pool.free(kv.pool.take(1))
    assert len(kv.find_hit(hashes_of(prompt), 4)[0]) == 3


# --- statistics ---


def test_reuse_is_counted_apart_from_what_a_preempted_request_finds_again() -> None:
    kv = make_coordinator()
    kv.count_hit(10, 8, first=True)
    kv.count_hit(30, 0, first=True)
    kv.count_hit(12, 8, first=False)
    assert kv.stats == PrefixStats(
        first=HitCounts(requests=2, hits=1, query_tokens=40, hit_tokens=8),
        resumed=HitCounts(requests=1, hits=1, query_tokens=12, hit_tokens=8),
    )


def test_a_request_too_short_for_any_hit_is_told_from_one_that_found_nothing() -> None:
    kv = make_coordinator()
    kv.count_hit(BLOCK_SIZE, 0, first=True)
    kv.count_hit(BLOCK_SIZE + 1, 0, first=True)
    assert (kv.stats.first.requests, kv.stats.first.too_short, kv.stats.first.hits) == (2, 1, 0)
