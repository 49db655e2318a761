"""Paged attention over one flat batch, with the KV write: the seam, and its pure torch implementation.

A step's tokens lie flat, row after row; a row is one request's share of the step, whether that is one token or a
chunk of a prompt. The KV of a layer is one tensor of blocks::

    kv_cache[block, 0 | 1, kv_head, offset, head_dim]       0 holds keys, 1 values

so that one head's keys of a block are contiguous: a decode step reads them in order. Token ``p`` of a request is in
block ``block_table[p // block_size]`` at offset ``p % block_size``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional


def kv_cache_shape(
    num_blocks: int, num_kv_heads: int, block_size: int, head_dim: int
) -> tuple[int, int, int, int, int]:
    """Shape of one layer's KV tensor for ``num_blocks`` blocks, the null block included."""
    return (num_blocks, 2, num_kv_heads, block_size, head_dim)


@dataclass
class BatchMeta:
    """Where the tokens of one flat batch stand and where their KV lives; all tensors are on the model's device.

    Attributes:
        positions: int64[T], position of each token in its request.
        slot_mapping: int64[T], ``block_id * block_size + offset`` of each token's own KV.
        qo_indptr: int32[n + 1], row ``i`` has tokens ``qo_indptr[i] .. qo_indptr[i + 1]``, at least one.
        context_lens: int32[n], KV length of each row once this step's tokens are written.
        block_tables: int32[n, width], the rows' block ids in order; entries beyond what a row needs are 0.
    """

    positions: Tensor
    slot_mapping: Tensor
    qo_indptr: Tensor
    context_lens: Tensor
    block_tables: Tensor

    def __post_init__(self) -> None:
        int32 = (self.qo_indptr, self.context_lens, self.block_tables)
        if any(t.dtype != torch.int64 for t in (self.positions, self.slot_mapping)):
            raise TypeError("positions and slot_mapping must be int64")
        if any(t.dtype != torch.int32 for t in int32):
            raise TypeError("qo_indptr, context_lens and block_tables must be int32")
        if any(t.stride(-1) != 1 for t in (self.positions, self.slot_mapping, *int32)):
            raise TypeError("the tensors of a batch must be contiguous along their last axis")

    @cached_property
    def addresses(self) -> tuple[int, int, int, int]:
        """Where positions, slot mapping, row bounds and block tables lie; for native kernels."""
        tensors = (self.positions, self.slot_mapping, self.qo_indptr, self.block_tables)
        positions, slots, bounds, tables = (tensor.data_ptr() for tensor in tensors)
        return positions, slots, bounds, tables

    @cached_property
    def plans(self) -> dict[tuple[int, int, int], Any]:
        """What a backend has worked out for all layers, by number of heads, of kv heads, and block size."""
        return {}

    @cached_property
    def rows(self) -> list[tuple[int, int, int]]:
        """``(first token, token after the last, context length)`` of each row, on the host; read once per step."""
        bounds = self.qo_indptr.tolist()
        return list(zip(bounds[:-1], bounds[1:], self.context_lens.tolist(), strict=True))


class Attention(Protocol):
    """The attention seam."""

    def write_kv_and_attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv_cache: Tensor, meta: BatchMeta, scale: float
    ) -> Tensor:
        """Write the step's keys and values into the cache, then attend causally over each row's own context.

        Token at position ``p`` sees positions ``0 .. p``. A row's result does not depend on the other rows.

        Args:
            q: float[T, num_heads, head_dim], rotated queries. Rows may be strided; a row itself is contiguous.
            k, v: float[T, num_kv_heads, head_dim], likewise.
            kv_cache: :func:`kv_cache_shape`, contiguous; written at ``meta.slot_mapping``.
            meta: see :class:`BatchMeta`.
            scale: multiplies the scores.

        Returns:
            float[T, num_heads * head_dim].
        """
        ...


class TorchAttention:
    """The seam in plain torch: one scaled-dot-product call per row. Works on any device."""

    def write_kv_and_attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv_cache: Tensor, meta: BatchMeta, scale: float
    ) -> Tensor:
        """See :meth:`Attention.write_kv_and_attend`."""
        block_size = kv_cache.shape[3]
        blocks, offsets = meta.slot_mapping // block_size, meta.slot_mapping % block_size
        kv_cache[blocks, 0, :, offsets] = k.to(kv_cache.dtype)
        kv_cache[blocks, 1, :, offsets] = v.to(kv_cache.dtype)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for row, (start, end, context) in enumerate(meta.rows):
            num_blocks = -(-context // block_size)
            kv = kv_cache[meta.block_tables[row, :num_blocks]]  # [blocks, 2, kv_heads, block_size, head_dim]
            kv = kv.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context].to(q.dtype)
            out[start:end] = _attend_row(q[start:end], kv[0], kv[1], scale)
        return out.flatten(1)


def _attend_row(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Causal attention of the last ``len(q)`` tokens of one request over ``keys, values [kv_heads, context, dim]``."""
    num_tokens, context = q.shape[0], keys.shape[1]
    group = q.shape[1] // keys.shape[0]
    mask = None
    if num_tokens > 1:
        mask = torch.ones(num_tokens, context, dtype=torch.bool, device=q.device).tril(context - num_tokens)
    out = functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys.repeat_interleave(group, dim=0)[None],
        values.repeat_interleave(group, dim=0)[None],
        attn_mask=mask,
        scale=scale,
    )
    return out[0].transpose(0, 1)
