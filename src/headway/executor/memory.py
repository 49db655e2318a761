"""The KV memory: how much it takes, how much there is, and taking it."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.config import CacheConfig, ConfigError
from headway.executor.available import available_bytes
from headway.executor.reserved import ReservedMemory, huge_page_bytes
from headway.models.config import ModelConfig
from headway.models.ops.attention import kv_cache_shape

# glibc's malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD with the largest value that it takes, M_ARENA_MAX.
_TRIM_THRESHOLD = (-1, 1 << 30)
_MMAP_THRESHOLD = (-3, 1 << 25)
_ARENA_MAX = (-8, 1)


HUGE_PAGE_SLACK = 1 / 16
"""Huge pages may hold so much of the KV memory without content: each layer's last page is filled by and by."""


class KVMemoryError(ConfigError):
    """KV blocks do not fit into memory.

    Args:
        field: the option that says how many: "num_blocks" or "num_host_blocks".
        num_blocks: that many, besides the null block.
        needed_bytes, available_bytes: what they take, and what there is.
        where: "on cpu", "in host memory", ...

    Attributes:
        needed_bytes: what they take.
        available_bytes: what there is.
    """

    def __init__(self, field: str, num_blocks: int, needed_bytes: int, available_bytes: int, where: str) -> None:
        fitting = max(0, available_bytes * (num_blocks + 1) // needed_bytes - 1)
        limit = (
            f"the KV cache needs {needed_bytes} bytes {where}, where {available_bytes} bytes are available;"
            f" at most {fitting} blocks fit"
        )
        super().__init__(field, num_blocks, limit)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


def kv_block_bytes(model: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one KV block over all layers."""
    shape = torch.Size(kv_cache_shape(1, model.num_kv_heads, block_size, model.head_dim))
    return model.num_layers * shape.numel() * dtype.itemsize


@dataclass(frozen=True)
class KVBlocks:
    """The device's KV blocks.

    Attributes:
        layers: one tensor per layer, the null block in front.
        reserved: what they lie in, if pages are given at the first write; layer after layer.
    """

    layers: tuple[Tensor, ...]
    reserved: ReservedMemory | None = None

    @property
    def nbytes(self) -> int:
        """Memory that they take in the end."""
        return sum(layer.nbytes for layer in self.layers)

    def resident_bytes(self) -> int:
        """Memory that they take now. The first layer is looked at: all are written alike."""
        resident = self.reserved.resident_bytes(self.layers[0].nbytes) if self.reserved is not None else None
        return self.nbytes if resident is None else resident * len(self.layers)


def allocate_kv(
    model: ModelConfig, cache: CacheConfig, dtype: torch.dtype, device: torch.device, *, preallocate: bool = False
) -> KVBlocks:
    """KV blocks, all zeros. On the CPU memory is only reserved, unless ``preallocate``.

    Raises:
        KVMemoryError: there is not enough memory.
        ConfigError: somebody else took it meanwhile, or the system refuses the addresses.
    """
    num_blocks = cache.num_blocks + 1
    needed = num_blocks * kv_block_bytes(model, cache.block_size, dtype)
    available = available_bytes(device)
    # Asked beforehand, because Linux hands out more memory than it has and kills the process later.
    if available is not None and needed > available:
        raise KVMemoryError("num_blocks", cache.num_blocks, needed, available, f"on {device}")
    shape = kv_cache_shape(num_blocks, model.num_kv_heads, cache.block_size, model.head_dim)
    if device.type != "cpu":
        return KVBlocks(tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in range(model.num_layers)))
    huge_pages = _huge_pages_suit(needed, model.num_layers)
    # Layers begin with a page of their own, so that what one has written says what the others take.
    page, layer_bytes = huge_page_bytes() if huge_pages else mmap.PAGESIZE, needed // model.num_layers
    stride = -(-layer_bytes // page) * page
    memory = _reserve("num_blocks", cache.num_blocks, stride * model.num_layers, huge_pages, preallocate)
    layers = memory.buffer.view(model.num_layers, stride)[:, :layer_bytes].unbind()
    return KVBlocks(tuple(layer.view(dtype).view(shape) for layer in layers), memory)


def allocate_host_kv(
    kv_caches: Sequence[Tensor], num_blocks: int, *, promised_bytes: int = 0, preallocate: bool = False
) -> tuple[Tensor, ReservedMemory | None]:
    """Host blocks [num_blocks + 1, layers, ...] for the blocks of ``kv_caches``, and what they lie in.

    If those are on a GPU the blocks are page-locked, which takes all memory now and lies in nothing of ours.

    Args:
        promised_bytes: host memory that is still free but will be taken by something else.
        preallocate: take all memory now.

    Raises:
        KVMemoryError, ConfigError: as :func:`allocate_kv`.
    """
    first = kv_caches[0]
    shape = (num_blocks + 1, len(kv_caches), *first.shape[1:])
    needed = torch.Size(shape).numel() * first.dtype.itemsize
    available = available_bytes(torch.device("cpu"))
    if available is not None:
        available = max(0, available - promised_bytes)
        if needed > available:
            raise KVMemoryError("num_host_blocks", num_blocks, needed, available, "in host memory")
    if first.device.type == "cuda":
        return torch.empty(shape, dtype=first.dtype, pin_memory=True), None
    memory = _reserve("num_host_blocks", num_blocks, needed, _huge_pages_suit(needed, 1), preallocate)
    return memory.buffer.view(first.dtype).view(shape), memory


def _huge_pages_suit(num_bytes: int, num_places: int) -> bool:
    """Whether memory that grows in so many places at once grows by little enough if each gets a huge page at a time."""
    return num_places * huge_page_bytes() <= num_bytes * HUGE_PAGE_SLACK


def _reserve(field: str, num_blocks: int, needed: int, huge_pages: bool, preallocate: bool) -> ReservedMemory:
    """So many bytes of host memory, pages and all if ``preallocate``."""
    try:
        memory = ReservedMemory(needed, huge_pages=huge_pages)
    except OSError as error:
        raise ConfigError(field, num_blocks, f"the system refuses {needed} bytes: {error.strerror}") from error
    if preallocate:
        taken = memory.take(lambda: available_bytes(torch.device("cpu")))
        if taken < needed:
            limit = (
                f"KV blocks need {needed} bytes of memory at once, which was free at first; after {taken} of them the"
                f" other {needed - taken} were not free any more, so all were given back"
            )
            raise ConfigError("preallocate", True, limit)
    return memory


def keep_freed_memory(libc: Any = None) -> bool:
    """Let the process keep freed memory for the next step instead of giving it back to the system each time.

    A step allocates the same tensors of some megabytes again and again. By default glibc maps each afresh, and the
    page faults cost more than computing the values: 24 ms instead of 1 ms for two passes over 64 x 49152 logits on one
    of our machines. Weights and KV, beyond 32 MiB per tensor, still go back when they are freed.

    Threads get no heaps of their own: those are too small for such tensors and are given back all the same. An engine
    in a thread had 1,500 page faults a step, and with one heap for all has none.

    Returns:
        Whether the C library knows how.
    """
    mallopt = getattr(libc or ctypes.CDLL(None), "mallopt", None)
    settings = (_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX)
    return mallopt is not None and all(mallopt(*setting) == 1 for setting in settings)
