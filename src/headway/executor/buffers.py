"""What the executor remembers between steps, per slot: the tokens and the block tables; and the inputs made from them.

A plan brings only what is new, so these tables live as long as the executor. The token table is on the device, because
sampled tokens are written there without coming to the host first: the next step can be submitted before the last one
was collected. Block tables are on the host: plans name every block, so nothing about them is known to the device only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headway.config import ConfigError
from headway.core.plan import AdmittedRow, Int32, Int64, NewBlocks, StepPlan
from headway.executor.tensors import to_device
from headway.models.ops.attention import BatchMeta


@dataclass(frozen=True)
class StepInputs:
    """Inputs of one forward pass.

    Attributes:
        token_ids: int64[T].
        metas: one per cache group; they differ in the slot mapping and the block tables.
        last: int64[n], index of each row's last token in the flat batch.
    """

    token_ids: Tensor
    metas: tuple[BatchMeta, ...]
    last: Int64


class InputBuffers:
    """Token table and block tables of all slots.

    Args:
        max_num_seqs, max_model_len: size of the tables.
        block_size: tokens in one KV block.
        num_blocks: blocks of the KV pool, the null block included; ids must be below.
        num_groups: cache groups.
        device: where the model runs.

    Attributes:
        token_table: int32[max_num_seqs, max_model_len], on the device.
        block_tables: per cache group, int32[max_num_seqs, blocks of the longest request]; 0 where there is no block.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        num_blocks: int,
        num_groups: int,
        device: torch.device,
    ) -> None:
        self._max_model_len = max_model_len
        self._block_size = block_size
        self._num_blocks = num_blocks
        self._device = device
        width = -(-max_model_len // block_size)
        self.token_table = torch.zeros(max_num_seqs, max_model_len, dtype=torch.int32, device=device)
        self.block_tables: list[Int32] = [np.zeros((max_num_seqs, width), np.int32) for _ in range(num_groups)]

    def admit(self, row: AdmittedRow) -> None:
        """Enter a request into its slot.

        Raises:
            ConfigError: it does not fit the tables, or names a block outside the pool. Its block table is then empty.
        """
        self.clear(row.slot)
        if len(row.tokens) > self._max_model_len:
            raise ConfigError("tokens", len(row.tokens), f"must be at most max_model_len ({self._max_model_len})")
        for table, block_ids in zip(self.block_tables, row.block_ids, strict=True):
            if len(block_ids) > table.shape[1]:
                raise ConfigError("block_ids", len(block_ids), f"must be at most {table.shape[1]} blocks")
            self._check(block_ids)
            table[row.slot, : len(block_ids)] = block_ids
        self.token_table[row.slot, : len(row.tokens)] = torch.tensor(row.tokens, device=self._device)

    def clear(self, slot: int) -> None:
        """Leave a slot without blocks: what a row writes then goes to the null block."""
        for table in self.block_tables:
            table[slot] = 0

    def append(self, new_blocks: tuple[NewBlocks, ...]) -> None:
        """Enter the blocks that rows got in this step; :class:`ConfigError` for one outside the pool."""
        for table, new in zip(self.block_tables, new_blocks, strict=True):
            self._check(new.block_ids)
            table[new.slots, new.index] = new.block_ids

    def build(self, plan: StepPlan) -> StepInputs:
        """Lay the plan's tokens flat, row after row."""
        counts = plan.num_scheduled.astype(np.int64)
        ends = np.cumsum(counts)
        row = np.repeat(np.arange(len(counts)), counts)
        positions = np.arange(len(row)) + (plan.starts - (ends - counts))[row]
        slots = plan.slots.astype(np.int64)[row]
        device_positions = to_device(positions, self._device)
        token_ids = self.token_table[to_device(slots, self._device), device_positions].long()
        indptr = to_device(np.concatenate(([0], ends)).astype(np.int32), self._device)
        lengths = plan.starts + plan.num_scheduled
        context_lens = to_device(lengths.astype(np.int32), self._device)
        width = -(-int(lengths.max()) // self._block_size)
        index, offset = np.divmod(positions, self._block_size)
        metas = []
        for table in self.block_tables:
            slot_mapping = table[slots, index].astype(np.int64) * self._block_size + offset
            metas.append(
                BatchMeta(
                    positions=device_positions,
                    slot_mapping=to_device(slot_mapping, self._device),
                    qo_indptr=indptr,
                    context_lens=context_lens,
                    block_tables=to_device(table[plan.slots, :width], self._device),
                )
            )
        return StepInputs(token_ids, tuple(metas), ends - 1)

    def write_sampled(self, slots: Int32, positions: Int64, tokens: Tensor) -> None:
        """Enter sampled ``tokens`` int64[m] at their places, on the device."""
        places = to_device(slots.astype(np.int64), self._device), to_device(positions, self._device)
        self.token_table[places] = tokens.int()

    def _check(self, block_ids: Int32) -> None:
        outside = (block_ids < 0) | (block_ids >= self._num_blocks)
        if outside.any():
            limit = f"must be a block of the pool, 0 to {self._num_blocks - 1}"
            raise ConfigError("block_ids", int(block_ids[np.argmax(outside)]), limit)
