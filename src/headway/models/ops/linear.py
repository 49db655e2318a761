"""The linear seam: one weight, stored as the device computes it best.

On the CPU a "float16" weight halves the memory traffic of a decode step while all arithmetic stays in float32: by the
native kernels, or without them by fbgemm's (an operator of torch's ``quantized`` namespace that may go one day: it is
used here only). A weight beyond the range of float16 is kept in float32, and :attr:`Linear.fell_back` says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from headway.config import ConfigError

WEIGHT_DTYPES = ("float32", "float16", "bfloat16")
FLOAT16_MAX = torch.finfo(torch.float16).max

# (weight in its final dtype, bias) -> the product; see headway.models.native.library.native_linear.
NativeLinear = Callable[[Tensor, Tensor | None], Callable[[Tensor], Tensor]]


@dataclass(frozen=True)
class Linear:
    """``y = x @ weight.T + bias``, made by :func:`make_linear`.

    Attributes:
        in_features, out_features: widths.
        kind: how the weight is stored and multiplied, in words.
        num_bytes: memory of the weight.
        fell_back: whether the weight was kept in float32 because it does not fit the dtype asked for.
    """

    in_features: int
    out_features: int
    kind: str
    num_bytes: int
    fell_back: bool
    apply: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        """float[T, in_features] -> float[T, out_features]."""
        return self.apply(x)


def make_linear(
    weight: Tensor, bias: Tensor | None, weight_dtype: str, device: torch.device, native: NativeLinear | None = None
) -> Linear:
    """Store ``weight [out, in]`` (any float dtype) for ``device``; with ``native`` kernels if they are given.

    Raises:
        ConfigError: see :func:`check_weight_dtype`.
    """
    check_weight_dtype(weight_dtype, device, native is not None)
    fits = weight_dtype != "float16" or fits_float16(weight)
    name = weight_dtype if fits else "float32"
    dtype = getattr(torch, name)
    if native is not None:
        apply, kind = native(weight.to(dtype), bias), f"native, {name} weights, float32 arithmetic"
    elif device.type == "cpu" and name == "float16":
        apply, kind = _packed_float16(weight, bias), "fbgemm, float16 weights, float32 arithmetic"
    else:
        apply, kind = (
            _plain(weight.to(device, dtype), None if bias is None else bias.to(device, dtype)),
            f"torch, {name}",
        )
    return Linear(weight.shape[1], weight.shape[0], kind, weight.numel() * dtype.itemsize, not fits, apply)


def check_weight_dtype(weight_dtype: str, device: torch.device, has_native: bool) -> None:
    """Raise :class:`ConfigError` if weights of this dtype cannot be used on ``device``."""
    if weight_dtype not in WEIGHT_DTYPES:
        raise ConfigError("weight_dtype", weight_dtype, f"must be one of {', '.join(WEIGHT_DTYPES)}")
    if weight_dtype == "bfloat16" and device.type == "cpu" and not has_native:
        raise ConfigError("weight_dtype", weight_dtype, "needs the native kernels on the CPU, take float32 or float16")
    if weight_dtype == "float16" and device.type == "cpu" and not has_native and not has_fbgemm():
        raise ConfigError("weight_dtype", weight_dtype, "needs the native kernels or fbgemm on the CPU, take float32")


def has_fbgemm() -> bool:
    """Whether this build of torch can multiply with float16 weights on the CPU."""
    return "fbgemm" in torch.backends.quantized.supported_engines


def fits_float16(weight: Tensor) -> bool:
    """Whether every value stays finite in float16."""
    low, high = weight.aminmax()  # NaN if any is, and then neither comparison holds
    return float(low) >= -FLOAT16_MAX and float(high) <= FLOAT16_MAX


def _plain(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    def apply(x: Tensor) -> Tensor:
        if x.dtype != weight.dtype:  # a weight kept in float32 among half-precision ones
            return functional.linear(x.to(weight.dtype), weight, bias).to(x.dtype)
        return functional.linear(x, weight, bias)

    return apply


def _packed_float16(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the operators announce their deprecation
        packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None if bias is None else bias.float())

    def apply(x: Tensor) -> Tensor:
        y: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, packed)
        return y

    return apply
