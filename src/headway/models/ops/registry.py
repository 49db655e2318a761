"""Which implementation of each seam a model runs on, chosen once and said aloud."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from headway.config import ConfigError
from headway.models.native.build import NativeBuildError
from headway.models.native.library import NativeAttention, NativeFused, native_library, native_linear
from headway.models.ops.attention import Attention, TorchAttention
from headway.models.ops.fused import Fused, TorchFused
from headway.models.ops.linear import Linear, NativeLinear, make_linear

CHOICES = ("auto", "native", "torch")
KERNELS_VARIABLE = "HEADWAY_KERNELS"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ops:
    """The chosen implementations of the three seams.

    Attributes:
        name: "native" or "torch".
        device: where they run.
        attention, fused: two of the seams.
        native_linear: how a linear layer is made natively; ``None`` for torch's.
        num_threads: threads the kernels use.
        reason: why these, in words.
    """

    name: str
    device: torch.device
    attention: Attention
    fused: Fused
    native_linear: NativeLinear | None
    num_threads: int
    reason: str

    def make_linear(self, weight: Tensor, bias: Tensor | None, weight_dtype: str) -> Linear:
        """The third seam: see :func:`~headway.models.ops.linear.make_linear`."""
        return make_linear(weight, bias, weight_dtype, self.device, self.native_linear)

    def describe(self) -> str:
        """One sentence for the log at start."""
        return f"kernels: {self.name} on {self.device}, {self.num_threads} threads ({self.reason})"


def select_ops(device: torch.device | str, choice: str = "auto") -> Ops:
    """Choose the kernels for ``device``; the environment variable ``HEADWAY_KERNELS`` overrides ``choice``.

    Native kernels take as many threads as torch has when they are first selected, and leave torch one; see
    :func:`~headway.models.native.library.native_library`.

    Args:
        device: where the model runs.
        choice: "native" (this package's C++ kernels, CPU only), "torch" (plain torch, anywhere) or "auto": native
            on the CPU if it can be built, else torch, with a warning in the log.

    Raises:
        ConfigError: an unknown choice, or native kernels asked for where they cannot be had.
    """
    device = torch.device(device)
    forced = os.environ.get(KERNELS_VARIABLE)
    choice = forced or choice
    origin = f"asked for by {KERNELS_VARIABLE}" if forced else "as asked"
    if choice not in CHOICES:
        raise ConfigError("kernels", choice, f"must be one of {', '.join(CHOICES)}")
    if choice == "torch":
        return _torch_ops(device, origin)
    if device.type != "cpu":
        if choice == "native":
            raise ConfigError("kernels", choice, f"runs on the CPU only, not on {device}")
        return _torch_ops(device, "the native kernels are for the CPU")
    try:
        return _native_ops(device, "built for this machine" if choice == "auto" else origin)
    except NativeBuildError as error:
        if choice == "native":
            raise ConfigError("kernels", choice, f"cannot be had here: {error}") from error
        _log.warning("Native kernels are not available, running on plain torch, which is slower: %s", error)
        return _torch_ops(device, f"no native kernels: {error}")


def _native_ops(device: torch.device, reason: str) -> Ops:
    library = native_library()
    linear = partial(native_linear, library)
    attention, fused = NativeAttention(library), NativeFused(library)
    return Ops("native", device, attention, fused, linear, library.num_threads, reason)


def _torch_ops(device: torch.device, reason: str) -> Ops:
    return Ops("torch", device, TorchAttention(), TorchFused(), None, torch.get_num_threads(), reason)
