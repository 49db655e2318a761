"""The built kernels as Python functions over addresses, and the two seams and the linear layer on top of them.

Only tensors on the CPU come here, activations in float32; shapes are the caller's care, as the seams state them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from headway.models.native.build import NativeBuildError, library_path
from headway.models.ops.attention import BatchMeta
from headway.models.ops.fused import HeadLayout

_P, _N, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "headway_set_num_threads": (None, (_I,)),
    "headway_get_num_threads": (_I, ()),
    "headway_panel_width": (_I, ()),
    "headway_linear": (None, (_P, _N, _P, _I, _N, _N, _P, _P)),
    "headway_rms_norm": (None, (_P, _P, _P, _F, _N, _N, _P)),
    "headway_rotate": (None, (_P, _N, _P, _P, _P, _P, _F, _N, _I, _I, _I)),
    "headway_silu_mul": (None, (_P, _N, _N, _P)),
    "headway_make_plan": (_P, (_P, _P, _P, _N, _N, _I, _I, _I)),
    "headway_free_plan": (None, (_P,)),
    "headway_write_kv_and_attend": (
        None, (_P, _P, _P, _P, _N, _N, _N, _P, _I, _P, _P, _P, _P, _N, _N, _I, _I, _I, _I, _F),
    ),
}  # fmt: skip
_NUMBER_KINDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


# Multiplications from which a call lets other Python threads run meanwhile: some milliseconds. For shorter calls giving
# the interpreter up costs more than it brings: a busy thread takes it for 5 ms at each of a step's 300 calls.
LONG_WORK = 10**9


class NativeLibrary:
    """The loaded kernels, by name: ``held`` keeps the interpreter's lock during a call, ``released`` gives it up."""

    def __init__(self, path: Path) -> None:
        try:
            self.held, self.released = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
        except OSError as error:
            raise NativeBuildError(f"the built library does not load: {error}") from error
        for library in (self.held, self.released):
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments

    @property
    def num_threads(self) -> int:
        """Threads that work on a kernel, the caller's included; results do not depend on it."""
        return int(self.held.headway_get_num_threads())

    @num_threads.setter
    def num_threads(self, num_threads: int) -> None:
        self.released.headway_set_num_threads(num_threads)


@cache
def native_library() -> NativeLibrary:
    """The library, built if need be and loaded once per process.

    Its threads are its own, as many as torch's at this moment. Torch gets a single one from here on: its threads
    keep spinning for milliseconds after each operation, on the cores that the kernels need.

    Raises:
        NativeBuildError: it cannot be built or loaded; the next call tries again.
    """
    library = NativeLibrary(library_path())
    library.num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    return library


class _AttentionPlan:
    """How a step's attention is cut up, kept with its :class:`BatchMeta` for all layers.

    Attributes:
        address: of the plan.
        num_scores: pairs of token and key, per query head.
    """

    def __init__(self, library: NativeLibrary, meta: BatchMeta, shape: tuple[int, int, int]) -> None:
        num_heads, num_kv_heads, block_size = shape
        self._free = library.held.headway_free_plan
        self.num_scores = int(meta.positions.sum()) + len(meta.positions)
        positions, _, bounds, tables = meta.addresses
        num_rows, width = len(meta.context_lens), meta.block_tables.stride(0)
        group = num_heads // num_kv_heads
        self.address = library.held.headway_make_plan(
            positions, bounds, tables, num_rows, width, group, num_kv_heads, block_size
        )

    def __del__(self) -> None:
        self._free(self.address)


class NativeAttention:
    """:class:`~headway.models.ops.attention.Attention` by the native kernels."""

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library
        self._attend = library.held.headway_write_kv_and_attend
        self._attend_long = library.released.headway_write_kv_and_attend

    def write_kv_and_attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv_cache: Tensor, meta: BatchMeta, scale: float
    ) -> Tensor:
        """See :meth:`~headway.models.ops.attention.Attention.write_kv_and_attend`."""
        num_tokens, num_heads, head_dim = q.shape
        shape = num_heads, k.shape[1], kv_cache.shape[3]
        plan = meta.plans.get(shape)
        if plan is None:
            plan = meta.plans[shape] = _AttentionPlan(self._library, meta, shape)
        positions, slots, _, tables = meta.addresses
        out = torch.empty((num_tokens, num_heads * head_dim))
        is_long = plan.num_scores * num_heads * head_dim * 2 > LONG_WORK
        attend = self._attend_long if is_long else self._attend
        attend(
            plan.address, q.data_ptr(), k.data_ptr(), v.data_ptr(), q.stride(0), k.stride(0), v.stride(0),
            kv_cache.data_ptr(), _NUMBER_KINDS[kv_cache.dtype], positions, slots, tables, out.data_ptr(),
            num_tokens, meta.block_tables.stride(0), *shape, head_dim, scale,
        )  # fmt: skip
        return out


class NativeFused:
    """:class:`~headway.models.ops.fused.Fused` by the native kernels."""

    def __init__(self, library: NativeLibrary) -> None:
        self._rms_norm = library.held.headway_rms_norm
        self._rotate = library.held.headway_rotate
        self._silu_mul = library.held.headway_silu_mul

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See :meth:`~headway.models.ops.fused.Fused.rms_norm`."""
        out = torch.empty_like(x)
        self._rms_norm(x.data_ptr(), None, weight.data_ptr(), eps, *x.shape, out.data_ptr())
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See :meth:`~headway.models.ops.fused.Fused.add_rms_norm`."""
        out = torch.empty_like(x)
        self._rms_norm(x.data_ptr(), residual.data_ptr(), weight.data_ptr(), eps, *x.shape, out.data_ptr())
        return out

    def rotate(self, qkv: Tensor, layout: HeadLayout, positions: Tensor, table: Tensor) -> None:
        """See :meth:`~headway.models.ops.fused.Fused.rotate`."""
        self._rotate(
            qkv.data_ptr(), qkv.shape[1], positions.data_ptr(), table.data_ptr(),
            None if layout.q_norm is None else layout.q_norm.data_ptr(),
            None if layout.k_norm is None else layout.k_norm.data_ptr(),
            layout.eps, qkv.shape[0], layout.num_heads, layout.num_kv_heads, layout.head_dim,
        )  # fmt: skip

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See :meth:`~headway.models.ops.fused.Fused.silu_mul`."""
        num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((num_tokens, width))
        self._silu_mul(gate_up.data_ptr(), num_tokens, width, out.data_ptr())
        return out


def native_linear(library: NativeLibrary, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """``x -> x @ weight.T + bias`` for a float32, float16 or bfloat16 ``weight [out, in]``, computed in float32."""
    out_features, in_features = weight.shape
    panel = library.held.headway_panel_width()
    packed = weight.new_zeros((-(-out_features // panel) * panel, in_features))
    packed[:out_features] = weight
    packed = packed.view(-1, panel, in_features).transpose(1, 2).contiguous()
    bias = None if bias is None else bias.float().contiguous()
    weight_at, bias_at = packed.data_ptr(), None if bias is None else bias.data_ptr()
    kind, multiply, multiply_long = (
        _NUMBER_KINDS[weight.dtype],
        library.held.headway_linear,
        library.released.headway_linear,
    )
    long_rows = LONG_WORK // weight.numel()

    def apply(x: Tensor, _kept: tuple[Tensor, Tensor | None] = (packed, bias)) -> Tensor:
        rows, x = x.shape[0], x.contiguous()
        y = torch.empty((rows, out_features))
        call = multiply_long if rows > long_rows else multiply
        call(x.data_ptr(), rows, weight_at, kind, in_features, out_features, bias_at, y.data_ptr())
        return y

    return apply
