"""The KV memory: how much it takes, how much there is, and taking it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway.config import CacheConfig, ConfigError
from headway.models.config import ModelConfig
from headway.models.ops.attention import kv_cache_shape

# Where Linux tells what memory is left: for the machine, and for the container (control group, version 2 and 1).
_MEMINFO = Path("/proc/meminfo")
_CGROUP_FILES = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)

# glibc's malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD with the largest value that it takes, M_ARENA_MAX.
_TRIM_THRESHOLD = (-1, 1 << 30)
_MMAP_THRESHOLD = (-3, 1 << 25)
_ARENA_MAX = (-8, 1)


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


def available_bytes(device: torch.device) -> int | None:
    """Memory that can still be taken on ``device``; ``None`` if the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    limits = [limit for limit in (_machine_bytes(), _container_bytes()) if limit is not None]
    return min(limits, default=None)


def allocate_kv(model: ModelConfig, cache: CacheConfig, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """One zeroed KV tensor per layer, with the null block in front.

    Raises:
        KVMemoryError: there is not enough memory.
    """
    num_blocks = cache.num_blocks + 1
    needed = num_blocks * kv_block_bytes(model, cache.block_size, dtype)
    available = available_bytes(device)
    # Asked beforehand, because Linux hands out more memory than it has and kills the process later.
    if available is not None and needed > available:
        raise KVMemoryError("num_blocks", cache.num_blocks, needed, available, f"on {device}")
    shape = kv_cache_shape(num_blocks, model.num_kv_heads, cache.block_size, model.head_dim)
    return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(model.num_layers)]


def allocate_host_kv(kv_caches: Sequence[Tensor], num_blocks: int) -> Tensor:
    """Host blocks [num_blocks + 1, layers, ...] for the blocks of ``kv_caches``; page-locked if those are on a GPU.

    Raises:
        KVMemoryError: there is not enough memory.
    """
    first = kv_caches[0]
    on_gpu = first.device.type == "cuda"
    shape = (num_blocks + 1, len(kv_caches), *first.shape[1:])
    needed = torch.Size(shape).numel() * first.dtype.itemsize
    available = available_bytes(torch.device("cpu"))
    if available is not None:
        # Linux counts memory as available until it is written to, and the device's blocks were not yet.
        available -= 0 if on_gpu else min(available, sum(kv_cache.nbytes for kv_cache in kv_caches))
        if needed > available:
            raise KVMemoryError("num_host_blocks", num_blocks, needed, available, "in host memory")
    return torch.empty(shape, dtype=first.dtype, pin_memory=on_gpu)


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


def _machine_bytes() -> int | None:
    if not _MEMINFO.exists():
        return None
    for line in _MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _container_bytes() -> int | None:
    for limit, used in _CGROUP_FILES:
        if limit.exists() and used.exists():
            text = limit.read_text().strip()
            return None if text == "max" else max(0, int(text) - int(used.read_text()))
    return None
