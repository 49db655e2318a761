"""A waiting request with what it would start from and what it would need (docs/design/step.md, rule 4.1 to 4.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.core.plan import Int32
from headway.core.request import Request, Status
from headway.core.state import SchedulerState


@dataclass(frozen=True)
class Candidate:
    """What admitting a waiting request means.

    Its block table would start with ``num_start`` blocks that have content already::

        | on the device: adopted | on the host: copied into new blocks | ... new blocks, nothing in them |
        0                                                         num_start                            gate

    (a swapped request may find device and host blocks in any order).

    Attributes:
        device_blocks: per group int32[num_start]; 0 where the content comes from the host.
        host_blocks: per group int32[num_start]; 0 where it is on the device.
        num_computed: tokens with KV to start from.
        num_restored: those of them that come from the host.
        want: tokens to compute.
        long: whether the long-prefill cap applies to it.
        gate: blocks per group that must be there before it starts.
    """

    request: Request
    device_blocks: tuple[Int32, ...]
    host_blocks: tuple[Int32, ...]
    num_computed: int
    num_restored: int
    want: int
    long: bool
    gate: int

    @property
    def num_start(self) -> int:
        """Blocks per group that have content already."""
        return len(self.device_blocks[0])

    @property
    def num_adopted(self) -> int:
        """Blocks of all groups that are on the device already."""
        return sum(int(np.count_nonzero(blocks)) for blocks in self.device_blocks)

    @property
    def num_published(self) -> int:
        """Leading blocks that every group has on the device, so that they need not be published again."""
        return min(int(np.argmin(np.append(blocks, 0))) for blocks in self.device_blocks)


def look_up(state: SchedulerState, request: Request, capped: bool) -> Candidate:
    """What the request would start from now, and what it would need."""
    if request.status is Status.SWAPPED:
        device_blocks, host_blocks, num_computed, num_restored = _swapped_start(state, request)
    else:
        device_blocks, host_blocks, num_computed, num_restored = _prefix_start(state, request)
    want = request.num_tokens - num_computed
    gate = state.blocks_for(request.num_tokens)
    if request.num_preemptions:
        # One more, so that it grows at least once; but what fits alone runs to where it would have got alone.
        gate = max(
            gate, min(state.blocks_for(request.num_tokens + 1), state.kv.pool.num_blocks // state.cache.num_groups)
        )
    return Candidate(
        request,
        device_blocks,
        host_blocks,
        num_computed,
        num_restored,
        want,
        long=capped and want > state.config.long_prefill_token_threshold,
        gate=gate,
    )


_Start = tuple[tuple[Int32, ...], tuple[Int32, ...], int, int]


def _prefix_start(state: SchedulerState, request: Request) -> _Start:
    """The longest prefix on the device, continued by what the host has of it."""
    size = state.cache.block_size
    limit = (request.num_tokens - 1) // size if request.takes_hits else 0
    device = state.kv.find_hit(request.block_hashes, limit)
    num_hit = len(device[0])
    if state.kv.host is None or num_hit == limit:
        return device, tuple(np.zeros_like(blocks) for blocks in device), num_hit * size, 0
    host = state.kv.host.longest_run(request.block_hashes[num_hit:], limit - num_hit)
    num_more = len(host[0])
    device_blocks = tuple(np.append(blocks, np.zeros(num_more, np.int32)) for blocks in device)
    host_blocks = tuple(np.append(np.zeros(num_hit, np.int32), blocks) for blocks in host)
    return device_blocks, host_blocks, (num_hit + num_more) * size, num_more * size


def _swapped_start(state: SchedulerState, request: Request) -> _Start:
    """All it had: from the device what is still cached there, the rest from the host."""
    size = state.cache.block_size
    num_computed = request.num_swapped_tokens
    num_blocks = len(request.host_tables[0])
    found = state.kv.find_each(request.block_hashes[: num_computed // size], num_blocks)
    on_device = np.all(np.stack(found) != 0, axis=0)
    device_blocks = tuple(np.where(on_device, blocks, 0).astype(np.int32) for blocks in found)
    host_blocks = tuple(np.where(on_device, 0, blocks).astype(np.int32) for blocks in request.host_tables)
    last = num_computed - (num_blocks - 1) * size
    num_restored = int(np.count_nonzero(~on_device)) * size - (0 if on_device[-1] else size - last)
    return device_blocks, host_blocks, num_computed, num_restored
