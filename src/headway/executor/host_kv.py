"""KV blocks in host memory, and the copies that swap a request's blocks out and back.

A block lies there in one piece, all layers together, so that it crosses the bus in one transfer however many layers
there are; blocks with neighbouring numbers cross together::

    host[block, layer, 0 | 1, kv_head, offset, head_dim]

Between the two layouts stands a small buffer on the device, gathered from or scattered to the layers' tensors. All
copies are queued on the device's stream: each comes after the steps submitted before it and before those after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from headway.config import ConfigError
from headway.core.plan import Bool, Int32, Int64
from headway.executor.memory import allocate_host_kv
from headway.executor.tensors import to_device

BUFFER_BYTES = 64 << 20
"""At most this much device memory for the buffer, but one block at least."""


class HostKV:
    """The host's KV blocks and the copies to and from them.

    A copy that fails leaves host blocks without the content they should have. They are remembered as *lost* until
    something else is stored there, so whatever is later restored from them is known to be ruined.

    Args:
        kv_caches: the device's KV, one tensor per layer, blocks first, the null block included.
        num_blocks: usable host blocks; their ids go from 1.
        promised_bytes, preallocate: as in :func:`~headway.executor.memory.allocate_host_kv`.

    Raises:
        KVMemoryError: they do not fit into the host's memory.
    """

    def __init__(
        self,
        kv_caches: Sequence[Tensor],
        num_blocks: int,
        *,
        promised_bytes: int = 0,
        preallocate: bool = False,
    ) -> None:
        self._kv_caches = kv_caches
        self._device = kv_caches[0].device
        self._num_device_blocks = len(kv_caches[0])
        self._blocks, self._reserved = allocate_host_kv(
            kv_caches, num_blocks, promised_bytes=promised_bytes, preallocate=preallocate
        )
        self._lost: Bool = np.zeros(len(self._blocks), np.bool_)
        block_bytes = self._blocks[0].nbytes
        num_buffered = max(1, min(num_blocks, BUFFER_BYTES // block_bytes))
        self._buffer = torch.empty(num_buffered, *self._blocks.shape[1:], dtype=self._blocks.dtype, device=self._device)

    @property
    def nbytes(self) -> int:
        """Host memory that the blocks take in the end."""
        return self._blocks.nbytes

    def resident_bytes(self) -> int:
        """Host memory that they take now."""
        resident = self._reserved.resident_bytes() if self._reserved is not None else None
        return self.nbytes if resident is None else resident

    def swap_out(self, pairs: Int32) -> None:
        """Copy device blocks to the host.

        Args:
            pairs: int32[k, 2], (device block, host block); no host block twice.

        Raises:
            ConfigError: a block that does not exist. What was to be stored counts as lost, as after any failure.
        """
        if not len(pairs):
            return
        host_ids = pairs[:, 1]
        self.lose(host_ids)
        self._check("swap_out", pairs[:, 0], host_ids)
        for part in self._parts(pairs):
            device_ids = to_device(part[:, 0].astype(np.int64), self._device)
            for layer, kv_cache in enumerate(self._kv_caches):
                self._buffer[: len(part), layer] = kv_cache.index_select(0, device_ids)
            for here, there in _runs(part[:, 1]):
                self._blocks[there].copy_(self._buffer[here], non_blocking=True)
        self._lost[host_ids] = False

    def lose(self, host_ids: Int32) -> None:
        """Count these host blocks as lost until something else is stored there."""
        self._lost[host_ids[(host_ids >= 0) & (host_ids < len(self._lost))]] = True

    def lost_among(self, host_ids: Int32) -> Int32:
        """Those of these host blocks that do not hold what was to be stored there: int32[k]."""
        inside = host_ids[(host_ids >= 0) & (host_ids < len(self._lost))]
        return inside[self._lost[inside]]

    def swap_in(self, pairs: Int32) -> Int64:
        """Copy host blocks to the device.

        Args:
            pairs: int32[k, 2], (host block, device block); no device block twice.

        Returns:
            int64[m], the device blocks whose content was lost on the host.

        Raises:
            ConfigError: a block that does not exist.
        """
        if not len(pairs):
            return np.zeros(0, np.int64)
        self._check("swap_in", pairs[:, 1], pairs[:, 0])
        for part in self._parts(pairs):
            for here, there in _runs(part[:, 0]):
                self._buffer[here].copy_(self._blocks[there], non_blocking=True)
            device_ids = to_device(part[:, 1].astype(np.int64), self._device)
            for layer, kv_cache in enumerate(self._kv_caches):
                kv_cache.index_copy_(0, device_ids, self._buffer[: len(part), layer])
        ruined: Int64 = pairs[self._lost[pairs[:, 0]], 1].astype(np.int64)
        return ruined

    def _parts(self, pairs: Int32) -> Iterator[Int32]:
        """As many pairs at a time as the buffer holds."""
        size = len(self._buffer)
        return (pairs[start : start + size] for start in range(0, len(pairs), size))

    def _check(self, name: str, device_ids: Int32, host_ids: Int32) -> None:
        for where, ids, end in (("device", device_ids, self._num_device_blocks), ("host", host_ids, len(self._blocks))):
            outside = (ids < 1) | (ids >= end)
            if outside.any():
                raise ConfigError(name, int(ids[np.argmax(outside)]), f"must be a {where} block, 1 to {end - 1}")


def _runs(ids: Int32) -> Iterator[tuple[slice, slice]]:
    """Stretches of neighbouring ids: (their places in ``ids``, the blocks themselves)."""
    breaks = np.flatnonzero(np.diff(ids) != 1) + 1
    starts, ends = [0, *breaks.tolist()], [*breaks.tolist(), len(ids)]
    for start, end in zip(starts, ends, strict=True):
        first = int(ids[start])
        yield slice(start, end), slice(first, first + end - start)
