"""Block hashes: what must make two of them equal, and what must keep them apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.kv import Int32, KeyPart, chain_root, extend_hashes, hash_blocks

BLOCK_SIZE = 4


def tokens(*numbers: int) -> Int32:
    return np.array(numbers, np.int32)


def hashes_of(prompt: Int32, *parts: KeyPart, block_size: int = BLOCK_SIZE) -> list[bytes]:
    """Hashes of all full blocks of ``prompt``."""
    hashes: list[bytes] = []
    root = chain_root(parts, block_size=block_size)
    extend_hashes(hashes, root, prompt, block_size, len(prompt) // block_size)
    return hashes


# --- the same everywhere ---


def test_hashes_have_the_fixed_values_that_every_process_and_machine_must_compute() -> None:
    salt = KeyPart("salt", b"tenant-1")
    assert chain_root(block_size=4).hex() == "196f3df7f2006ce3e38ffdb6b9269fb584d4c6cc4ce08531253d61cb02b2fcef"
    assert chain_root([salt], block_size=4).hex() == "89458e1163fdbdf596065c68637e30862d82d0c161711e0b75fb737640569158"
    assert [block_hash.hex() for block_hash in hashes_of(tokens(1, 2, 3, 4, -1, 70000, 2**31 - 1, 0), salt)] == [
        "f11d0d85a0441338f3d84c913a84fd545540a9cb2d4d40386aa1f046d47e205a",
        "12bcbb13f0cb1ed21313281a9a83b48c6eeb493eeb035c4cc2c3527194c207a7",
    ]


def test_the_byte_order_and_layout_of_the_array_do_not_matter() -> None:
    prompt = np.arange(70_000, 70_016, dtype=np.int32)
    assert hashes_of(prompt.astype(">i4")) == hashes_of(prompt)
    strided = np.stack([prompt, prompt + 1], axis=1)[:, 0]
    assert hashes_of(strided) == hashes_of(prompt)
    columns = np.asfortranarray(prompt.reshape(4, 4))
    roots = [chain_root(block_size=4)] * 4
    assert hash_blocks(roots, columns) == hash_blocks(roots, prompt.reshape(4, 4))


def test_wider_integers_are_refused_rather_than_cut() -> None:
    with pytest.raises(TypeError):
        hashes_of(np.array([1, 2, 3, 2**40]))


def test_extending_piece_by_piece_equals_extending_at_once() -> None:
    prompt = np.arange(23, dtype=np.int32)
    root = chain_root(block_size=BLOCK_SIZE)
    hashes: list[bytes] = []
    for upto in (0, 1, 1, 4, 5):
        extend_hashes(hashes, root, prompt, BLOCK_SIZE, upto)
        assert len(hashes) == upto
    assert hashes == hashes_of(prompt)


def test_asking_for_fewer_blocks_than_have_a_hash_changes_nothing() -> None:
    prompt = np.arange(12, dtype=np.int32)
    hashes = hashes_of(prompt)
    extend_hashes(hashes, chain_root(block_size=BLOCK_SIZE), prompt, BLOCK_SIZE, 1)
    assert hashes == hashes_of(prompt)


def test_the_bulk_path_equals_the_chain() -> None:
    prompts = np.random.default_rng(3).integers(0, 50_000, (5, 12)).astype(np.int32)
    chains = [hashes_of(prompt) for prompt in prompts]
    parents = [chain[1] for chain in chains]
    assert hash_blocks(parents, prompts[:, 8:12]) == [chain[2] for chain in chains]
    assert hash_blocks([], prompts[:0, 8:12]) == []


def test_a_block_that_is_not_full_has_no_hash() -> None:
    root = chain_root(block_size=BLOCK_SIZE)
    with pytest.raises(ValueError, match="7 tokens do not fill 2 blocks of 4"):
        extend_hashes([], root, np.arange(7, dtype=np.int32), BLOCK_SIZE, 2)


def test_every_block_needs_a_parent() -> None:
    with pytest.raises(ValueError, match="1 parents for 2 blocks"):
        hash_blocks([b"p"], np.zeros((2, 4), np.int32))


# --- apart: tokens ---


def test_a_changed_token_changes_its_block_and_all_after_it_but_none_before() -> None:
    prompt = np.arange(16, dtype=np.int32)
    changed = prompt.copy()
    changed[6] += 1
    same = [a == b for a, b in zip(hashes_of(prompt), hashes_of(changed), strict=True)]
    assert same == [True, False, False, False]


def test_neighbouring_tokens_cannot_make_up_for_each_other() -> None:
    """Weak polynomial hashes (factor 31) collide on these pairs."""
    prompt = tokens(*range(100, 116))
    seen = {hashes_of(prompt)[-1]}
    for place in range(15):
        changed = prompt.copy()
        changed[place] += 31
        changed[place + 1] -= 1
        seen.add(hashes_of(changed)[-1])
    assert len(seen) == 16


def test_equal_tokens_at_another_place_or_in_another_order_differ() -> None:
    first, second = hashes_of(tokens(1, 2, 3, 4, 1, 2, 3, 4))
    assert first != second
    assert first != hashes_of(tokens(4, 3, 2, 1))[0]


def test_equal_tokens_in_blocks_of_another_size_differ() -> None:
    prompt = np.arange(8, dtype=np.int32)
    assert not set(hashes_of(prompt)) & set(hashes_of(prompt, block_size=2))
    assert chain_root(block_size=4) != chain_root(block_size=2)


# --- apart: key parts ---


def test_an_adapter_never_equals_a_salt_of_the_same_name() -> None:
    prompt = np.arange(8, dtype=np.int32)
    keys = [
        hashes_of(prompt)[1],
        hashes_of(prompt, KeyPart("salt", b"x"))[1],
        hashes_of(prompt, KeyPart("adapter", b"x"))[1],
        hashes_of(prompt, KeyPart("adapter", b"x"), KeyPart("salt", b"x"))[1],
        hashes_of(prompt, KeyPart("salt", b""))[1],
    ]
    assert len(set(keys)) == len(keys)


def test_bytes_cannot_move_between_kind_value_and_neighbouring_parts() -> None:
    roots = [
        chain_root([KeyPart("ab", b"c")], block_size=4),
        chain_root([KeyPart("a", b"bc")], block_size=4),
        chain_root([KeyPart("a", b"b"), KeyPart("c", b"")], block_size=4),
        chain_root([KeyPart("a", b"b" + b"\x01\0\0\0c" + b"\0\0\0\0")], block_size=4),
    ]
    assert len(set(roots)) == len(roots)


part_lists = st.lists(st.builds(KeyPart, st.text("ab", max_size=2), st.binary(max_size=6)), max_size=3)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(part_lists, part_lists)
def test_roots_are_equal_exactly_if_the_parts_are(left: list[KeyPart], right: list[KeyPart]) -> None:
    def in_order(parts: list[KeyPart]) -> list[tuple[str, bytes]]:
        return sorted((part.kind, part.value) for part in parts)

    same = chain_root(left, block_size=4) == chain_root(right, block_size=4)
    assert same == (in_order(left) == in_order(right))
    assert chain_root(left[::-1], block_size=4) == chain_root(left, block_size=4)
