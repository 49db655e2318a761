"""The seam of fused small operations: norm with residual, rotary embedding, gated activation; and plain torch.

Each is a few passes over the activations; as separate torch operators they cost more in dispatch than in work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class HeadLayout:
    """How a row of the fused projection splits: ``num_heads`` queries, then keys, then values.

    Attributes:
        num_heads, num_kv_heads, head_dim: see :class:`~headway.models.config.ModelConfig`.
        q_norm, k_norm: float[head_dim] weights of a norm per head before rotation, or ``None``.
        eps: of that norm.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    eps: float = 1e-6

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Views ``q [T, num_heads, head_dim]`` and ``k, v [T, num_kv_heads, head_dim]`` of ``qkv [T, width]``."""
        heads = qkv.view(len(qkv), -1, self.head_dim)
        q, k, v = heads.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1)
        return q, k, v


class Fused(Protocol):
    """The seam. Statistics of a norm are computed in float32 whatever the dtype."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis; float[T, width] -> same."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add ``x`` to ``residual`` in place, then return its :meth:`rms_norm`."""
        ...

    def rotate(self, qkv: Tensor, layout: HeadLayout, positions: Tensor, table: Tensor) -> None:
        """Normalise (where the layout has norms) and rotate the queries and keys of ``qkv`` in place.

        Args:
            qkv: float[T, (num_heads + 2 * num_kv_heads) * head_dim], contiguous.
            layout: how a row splits.
            positions: int64[T].
            table: float32[num_positions, 2, head_dim / 2], cosines and sines.
        """
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """``silu(gate) * up`` for ``gate_up [T, 2 * width]`` -> float[T, width]."""
        ...


class TorchFused:
    """The seam in plain torch. Works on any device."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See :meth:`Fused.rms_norm`."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See :meth:`Fused.add_rms_norm`."""
        return self.rms_norm(residual.add_(x), weight, eps)

    def rotate(self, qkv: Tensor, layout: HeadLayout, positions: Tensor, table: Tensor) -> None:
        """See :meth:`Fused.rotate`."""
        cos, sin = table[positions][:, :, None].to(qkv.dtype).unbind(1)
        q, k, _ = layout.split(qkv)
        for part, norm in ((q, layout.q_norm), (k, layout.k_norm)):
            source = part if norm is None else self.rms_norm(part, norm, layout.eps)
            first, second = source.chunk(2, dim=-1)
            part.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See :meth:`Fused.silu_mul`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up
