"""Which implementation of each seam a model runs on, chosen once and said aloud."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from headway.config import ConfigError
from headway.models.ops.attention import Attention, TorchAttention
from headway.models.ops.fused import Fused, TorchFused

CHOICES = ("auto", "native", "torch")
KERNELS_VARIABLE = "HEADWAY_KERNELS"


@dataclass(frozen=True)
class Ops:
    """The chosen implementations.

    Attributes:
        name: "native" or "torch".
        device: where they run.
        attention, fused: the seams; linear layers are made by :func:`~headway.models.ops.linear.make_linear`.
        reason: why this one, in words.
    """

    name: str
    device: torch.device
    attention: Attention
    fused: Fused
    reason: str

    def describe(self) -> str:
        """One sentence for the log at start."""
        return f"kernels: {self.name} on {self.device} ({self.reason})"


def select_ops(device: torch.device | str, choice: str = "auto") -> Ops:
    """Choose the kernels for ``device``; the environment variable ``HEADWAY_KERNELS`` overrides ``choice``.

    Args:
        device: where the model runs.
        choice: "native" (this package's C++ kernels, CPU only), "torch" (plain torch, anywhere) or "auto".

    Raises:
        ConfigError: an unknown choice, or native kernels asked for where they cannot be had.
    """
    device = torch.device(device)
    forced = os.environ.get(KERNELS_VARIABLE)
    if forced:
        choice = forced
    if choice not in CHOICES:
        raise ConfigError("kernels", choice, f"must be one of {', '.join(CHOICES)}")
    return Ops("torch", device, TorchAttention(), TorchFused(), "works anywhere")
