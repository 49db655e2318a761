"""The flat inputs against loops over rows and tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway.config import ConfigError, SamplingParams
from headway.core.plan import AdmittedRow, NewBlocks, StepPlan
from headway.executor.buffers import InputBuffers

BLOCK = 4


def make_buffers(num_groups: int = 1) -> InputBuffers:
    return InputBuffers(
        max_num_seqs=16,
        max_model_len=30,
        block_size=BLOCK,
        num_blocks=300,
        num_groups=num_groups,
        device=torch.device("cpu"),
    )


def make_row(slot: int, tokens: list[int], *block_ids: list[int]) -> AdmittedRow:
    tables = tuple(np.array(ids, np.int32) for ids in block_ids)
    return AdmittedRow(slot, 1, "r", np.array(tokens, np.int32), len(tokens), 0, tables, SamplingParams(), False)


def make_plan(slots: list[int], starts: list[int], counts: list[int]) -> StepPlan:
    return StepPlan(
        step=1,
        slots=np.array(slots, np.int32),
        num_scheduled=np.array(counts, np.int32),
        starts=np.array(starts, np.int32),
        samples=np.ones(len(slots), np.bool_),
        new_blocks=(),
        admitted=(),
        released=np.zeros(0, np.int32),
    )


def test_inputs_equal_those_of_a_slow_reference() -> None:
    rng = np.random.default_rng(1)
    buffers = make_buffers(num_groups=2)
    tokens = rng.integers(1, 1000, (16, 30))
    tables = [1 + rng.permutation(128).reshape(16, 8), 150 + rng.permutation(128).reshape(16, 8)]
    for slot in range(16):
        buffers.admit(make_row(slot, tokens[slot].tolist(), *(table[slot].tolist() for table in tables)))
    for _ in range(20):
        n = int(rng.integers(1, 17))
        slots = rng.permutation(16)[:n]
        starts = rng.integers(0, 29, n)
        counts = np.array([rng.integers(1, 31 - start) for start in starts]) if rng.random() < 0.7 else np.ones(n, int)
        inputs = buffers.build(make_plan(slots.tolist(), starts.tolist(), counts.tolist()))
        cells = [
            (slot, p)
            for slot, start, count in zip(slots, starts, counts, strict=True)
            for p in range(start, start + count)
        ]
        assert inputs.token_ids.tolist() == [tokens[cell] for cell in cells]
        assert inputs.token_ids.dtype == torch.int64
        assert inputs.last.tolist() == [sum(counts[: i + 1]) - 1 for i in range(n)]
        for table, meta in zip(tables, inputs.metas, strict=True):
            assert meta.positions.tolist() == [p for _, p in cells]
            assert meta.slot_mapping.tolist() == [table[slot, p // BLOCK] * BLOCK + p % BLOCK for slot, p in cells]
            assert meta.qo_indptr.tolist() == [sum(counts[:i]) for i in range(n + 1)]
            assert meta.context_lens.tolist() == (starts + counts).tolist()
            for row, slot in enumerate(slots):
                needed = -(-(starts[row] + counts[row]) // BLOCK)
                assert meta.block_tables[row, :needed].tolist() == table[slot, :needed].tolist()
            kinds = (meta.qo_indptr.dtype, meta.context_lens.dtype, meta.block_tables.dtype, meta.slot_mapping.dtype)
            assert kinds == (torch.int32, torch.int32, torch.int32, torch.int64)


def test_new_blocks_and_sampled_tokens_are_appended() -> None:
    buffers = make_buffers()
    buffers.admit(make_row(2, [5, 6, 7, 8], [9]))
    buffers.write_sampled(np.array([2], np.int32), np.array([4]), torch.tensor([77]))
    added = NewBlocks(np.array([2], np.int32), np.array([1], np.int32), np.array([30], np.int32))
    buffers.append((added,))
    inputs = buffers.build(make_plan([2], [4], [1]))
    assert inputs.token_ids.tolist() == [77]
    assert inputs.metas[0].slot_mapping.tolist() == [30 * BLOCK]
    assert inputs.metas[0].block_tables.tolist() == [[9, 30]]


def test_a_slot_forgets_the_blocks_of_the_request_before() -> None:
    buffers = make_buffers()
    buffers.admit(make_row(0, [1] * 9, [4, 5, 6]))
    buffers.admit(make_row(0, [1, 2], [8]))
    assert buffers.block_tables[0][0].tolist() == [8] + [0] * 7


def test_read_only_plan_arrays_are_fine() -> None:
    buffers = make_buffers()
    row = make_row(0, [1, 2], [8])
    row.tokens.flags.writeable = False
    row.block_ids[0].flags.writeable = False
    plan = make_plan([0], [0], [2])
    for array in (plan.slots, plan.starts, plan.num_scheduled):
        array.flags.writeable = False
    buffers.admit(row)
    assert buffers.build(plan).token_ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (make_row(0, [1] * 31, [1]), "tokens"),
        (make_row(0, [1], list(range(1, 10))), "block_ids"),
        (make_row(0, [1], [300]), "block_ids"),
        (make_row(0, [1], [-1]), "block_ids"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_no_blocks(row: AdmittedRow, field: str) -> None:
    buffers = make_buffers()
    with pytest.raises(ConfigError) as caught:
        buffers.admit(row)
    assert caught.value.field == field
    assert not buffers.block_tables[0].any()
