"""Both attention backends against attention written out in double precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headway.models.ops.attention import Attention, BatchMeta, kv_cache_shape
from headway.models.ops.registry import select_ops
from tests.models.paged import batch_meta, scattered_tables

BACKENDS = ("torch", "native")
MIXED_ROWS = [(0, 1), (5, 1), (99, 1), (0, 33), (17, 40), (3, 2), (31, 1), (32, 1), (0, 100), (63, 2)]


def reference(q: Tensor, k: Tensor, v: Tensor, kv_cache: Tensor, meta: BatchMeta, scale: float) -> Tensor:
    """The definition, one query head at a time, in float64; writes the cache."""
    block_size = kv_cache.shape[3]
    for token, slot in enumerate(meta.slot_mapping.tolist()):
        kv_cache[slot // block_size, 0, :, slot % block_size] = k[token].to(kv_cache.dtype)
        kv_cache[slot // block_size, 1, :, slot % block_size] = v[token].to(kv_cache.dtype)
    out = torch.zeros(q.shape, dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for row, (begin, end, context) in enumerate(meta.rows):
        places = [(int(meta.block_tables[row, p // block_size]), p % block_size) for p in range(context)]
        cached = torch.stack([kv_cache[block, :, :, offset] for block, offset in places]).double()
        for token in range(begin, end):
            seen = context - (end - begin) + (token - begin) + 1
            for head in range(q.shape[1]):
                keys, values = cached[:seen, 0, head // group], cached[:seen, 1, head // group]
                out[token, head] = torch.softmax(keys @ q[token, head].double() * scale, 0) @ values
    return out.flatten(1)


class Case:
    """Random inputs for some rows."""

    def __init__(
        self,
        rows: list[tuple[int, int]],
        *,
        num_heads: int = 4,
        num_kv_heads: int = 2,
        head_dim: int = 16,
        block_size: int = 4,
        dtype: torch.dtype = torch.float32,
        sharpness: float = 1.0,
    ) -> None:
        generator = torch.Generator().manual_seed(head_dim + block_size)
        tables, num_blocks = scattered_tables([start + count for start, count in rows], block_size)
        self.meta = batch_meta(rows, tables, block_size)
        shape = kv_cache_shape(num_blocks, num_kv_heads, block_size, head_dim)
        self.kv_cache = torch.randn(shape, generator=generator).to(dtype)
        num_tokens = len(self.meta.positions)
        # As the model does, all three are views of one tensor, so rows are strided.
        qkv = torch.randn(num_tokens, num_heads + 2 * num_kv_heads, head_dim, generator=generator) * sharpness
        self.q, self.k, self.v = qkv.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
        self.scale = head_dim**-0.5

    def run(self, attention: Attention) -> tuple[Tensor, Tensor]:
        """Output and the cache after it."""
        kv_cache = self.kv_cache.clone()
        out = attention.write_kv_and_attend(self.q, self.k, self.v, kv_cache, self.meta, self.scale)
        return out, kv_cache

    def expected(self) -> tuple[Tensor, Tensor]:
        kv_cache = self.kv_cache.clone()
        return reference(self.q, self.k, self.v, kv_cache, self.meta, self.scale), kv_cache


def attention_of(backend: str) -> Attention:
    return select_ops("cpu", backend).attention


def assert_matches(case: Case, backend: str, rtol: float = 1e-4, atol: float = 2e-6) -> None:
    out, kv_cache = case.run(attention_of(backend))
    expected, expected_cache = case.expected()
    assert torch.equal(kv_cache, expected_cache)
    torch.testing.assert_close(out.double(), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("heads", [(2, 2), (9, 3), (4, 1)], ids=["1 per kv head", "3 per kv head", "4 per kv head"])
def test_mixed_rows_match_the_definition(backend: str, block_size: int, heads: tuple[int, int]) -> None:
    case = Case(MIXED_ROWS, num_heads=heads[0], num_kv_heads=heads[1], block_size=block_size)
    assert_matches(case, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("head_dim", [2, 10, 64, 80, 128])
def test_any_even_head_width(backend: str, head_dim: int) -> None:
    assert_matches(Case([(0, 7), (40, 1), (20, 30)], head_dim=head_dim), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("group", [5, 7, 12, 130])
def test_many_query_heads_for_one_kv_head(backend: str, group: int) -> None:
    assert_matches(Case([(0, 20), (33, 1)], num_heads=group, num_kv_heads=1), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cache_in_half_precision(backend: str, dtype: torch.dtype) -> None:
    assert_matches(Case(MIXED_ROWS, dtype=dtype, block_size=16), backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sharp_scores_neither_overflow_nor_vanish(backend: str) -> None:
    # Scores of some thousands are rounded to a few ten-thousandths, and the values are tens.
    assert_matches(Case([(0, 90), (70, 1)], sharpness=30.0), backend, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_contexts_of_several_parts(backend: str) -> None:
    """Longer than a part of the native kernel, alone (so parts are spread over the threads) and among others."""
    assert_matches(Case([(1100, 1)], num_kv_heads=1, block_size=16), backend)
    assert_matches(Case([(510, 5)], num_kv_heads=1, block_size=16), backend)
    assert_matches(Case([(1100, 1), (600, 20), *[(9, 1)] * 12], block_size=16), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_what_is_not_a_number_stays_so_in_its_own_row(backend: str, part: str) -> None:
    case = Case([(3, 1), (20, 1), (0, 9)])
    getattr(case, part)[1, :, 0] = float("nan")
    out, _ = case.run(attention_of(backend))
    assert out.isnan().any(1).tolist() == [False, True] + [False] * 9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_computed_from_places_that_were_not_written(backend: str, dtype: torch.dtype) -> None:
    """KV memory is only reserved, and blocks are reused: behind a context stands anything."""
    case = Case(MIXED_ROWS, block_size=16, dtype=dtype)
    clean, _ = case.run(attention_of(backend))
    unwritten = torch.ones(len(case.kv_cache), case.kv_cache.shape[3], dtype=torch.bool)
    for table, context in zip(case.meta.block_tables.tolist(), case.meta.context_lens.tolist(), strict=True):
        for position in range(context):
            unwritten[table[position // 16], position % 16] = False
    case.kv_cache.masked_fill_(unwritten[:, None, None, :, None], float("nan"))
    assert case.kv_cache[0].isnan().all() and unwritten[1:].any(), "the null block, and others in part"

    dirty, _ = case.run(attention_of(backend))

    assert torch.equal(clean, dirty)


def share_blocks(case: Case, row: int, other: int, num_blocks: int) -> None:
    """Let a row have the first blocks of another one, as after a prefix hit."""
    case.meta.block_tables[row, :num_blocks] = case.meta.block_tables[other, :num_blocks]


SHARED_PREFIXES = {
    "all the same": ([(299, 1)] * 7, 16, [(row, 0, 16) for row in range(1, 7)]),
    "just a part": ([(128, 1), (127, 1), (300, 2)], 16, [(1, 0, 7), (2, 0, 8)]),
    "the whole context": ([(255, 1), (255, 1)], 16, [(1, 0, 15)]),
    "several groups, and rows alone": (
        [(299, 1), (513, 1), (299, 1), (40, 1), (0, 9), (520, 3), (299, 1), (600, 1)],
        16,
        [(2, 0, 18), (5, 1, 32), (7, 1, 30), (6, 0, 8)],
    ),
    "one shares less than the others": ([(700, 1)] * 4, 16, [(1, 0, 40), (2, 0, 40), (3, 0, 9)]),
    "blocks that do not divide a part": ([(299, 1)] * 3, 24, [(1, 0, 12), (2, 0, 6)]),
    "small blocks": ([(299, 1)] * 3, 1, [(1, 0, 299), (2, 0, 200)]),
    "more queries than one tile takes": ([(140, 1)] * 150, 16, [(row, 0, 8) for row in range(1, 150)]),
    "a long chunk among them": ([(256, 1), (256, 1), (256, 90)], 16, [(1, 0, 16), (2, 0, 16)]),
}


def shared_case(name: str, num_heads: int = 6) -> Case:
    rows, block_size, shares = SHARED_PREFIXES[name]
    case = Case(rows, num_heads=num_heads, head_dim=8, block_size=block_size)
    for share in shares:
        share_blocks(case, *share)
    return case


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SHARED_PREFIXES)
def test_rows_that_share_a_prefix(backend: str, name: str) -> None:
    assert_matches(shared_case(name), backend)


def assert_rows_alone_give_the_same_numbers(together: Case) -> None:
    attention = attention_of("native")
    expected, kv_cache = together.run(attention)
    meta = together.meta
    for row, (begin, end, _) in enumerate(meta.rows):
        alone = BatchMeta(
            positions=meta.positions[begin:end],
            slot_mapping=meta.slot_mapping[begin:end],
            qo_indptr=torch.tensor([0, end - begin], dtype=torch.int32),
            context_lens=meta.context_lens[row : row + 1],
            block_tables=meta.block_tables[row : row + 1],
        )
        q, k, v = (part[begin:end] for part in (together.q, together.k, together.v))
        out = attention.write_kv_and_attend(q, k, v, kv_cache, alone, together.scale)
        assert torch.equal(out, expected[begin:end])


@pytest.mark.parametrize("num_heads", [2, 6, 14])
@pytest.mark.parametrize("name", SHARED_PREFIXES)
def test_native_result_of_a_row_is_the_same_number_whoever_shares_its_prefix(name: str, num_heads: int) -> None:
    assert_rows_alone_give_the_same_numbers(shared_case(name, num_heads))


def test_native_result_of_a_row_is_the_same_number_in_any_batch() -> None:
    rows = [(600, 3), (1050, 1), (0, 70), *[(20, 1)] * 20]
    assert_rows_alone_give_the_same_numbers(Case(rows, num_kv_heads=1, block_size=16))


def test_native_result_of_a_query_is_the_same_number_in_any_chunk() -> None:
    attention = attention_of("native")
    length = 140
    whole = Case([(0, length)], block_size=4)
    expected, _ = whole.run(attention)
    for chunk in (1, 7, 64):
        kv_cache = whole.kv_cache.clone()
        for start in range(0, length, chunk):
            end = min(length, start + chunk)
            meta = batch_meta([(start, end - start)], [whole.meta.block_tables[0].tolist()], 4)
            q, k, v = (part[start:end] for part in (whole.q, whole.k, whole.v))
            out = attention.write_kv_and_attend(q, k, v, kv_cache, meta, whole.scale)
            assert torch.equal(out, expected[start:end])


def test_a_batch_refuses_tensors_of_other_types() -> None:
    meta = batch_meta([(0, 2)], [[1]], 4)
    with pytest.raises(TypeError, match="qo_indptr, context_lens and block_tables must be int32"):
        BatchMeta(meta.positions, meta.slot_mapping, meta.qo_indptr.long(), meta.context_lens, meta.block_tables)
    with pytest.raises(TypeError, match="positions and slot_mapping must be int64"):
        BatchMeta(meta.positions, meta.slot_mapping.int(), meta.qo_indptr, meta.context_lens, meta.block_tables)
    with pytest.raises(TypeError, match="contiguous along their last axis"):
        BatchMeta(meta.positions, torch.arange(4)[::2], meta.qo_indptr, meta.context_lens, meta.block_tables)
