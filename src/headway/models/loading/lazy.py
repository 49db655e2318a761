"""A mapping of tensor names to tensors that reads one when it is asked for, so a model is never in memory twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """One tensor in a file.

    Attributes:
        path: the file.
        shape: as PyTorch would say it, outermost dimension first.
        kind: name of its number format in that file.
        plain: whether it is made of ordinary floating-point numbers once read.
        read: reads it; a new tensor each time.
    """

    path: Path
    shape: tuple[int, ...]
    kind: str
    plain: bool
    read: Callable[[], torch.Tensor]


class LazyWeights(Mapping[str, "torch.Tensor"]):
    """Tensors by Hugging Face name. Every access reads from the file again: take each once, or keep it yourself.

    Args:
        entries: the tensors that are there.
        dtype: what to convert each to; ``None`` leaves it as the file has it.
    """

    def __init__(self, entries: Mapping[str, TensorEntry], dtype: torch.dtype | None = None) -> None:
        self.entries = entries
        self._dtype = dtype

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self.entries[name].read()
        return tensor if self._dtype is None else tensor.to(self._dtype)

    def __contains__(self, name: object) -> bool:
        return name in self.entries  # the inherited test would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)
