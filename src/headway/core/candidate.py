"""A waiting request with what it would start from and what it would need (docs/design/step.md, rule 4.1 to 4.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.core.plan import Int32
from headway.core.request import Request, Status
from headway.core.state import SchedulerState


@dataclass(frozen=True)
class Start:
    """What a request would start from: the leading blocks of its table that have content already.

    Where they are::

        | on the device: adopted | on the host: copied into new blocks |
        0                                                        num_blocks

    (a swapped request may find device and host blocks in any order).

    Attributes:
        device_blocks: per group int32[num_blocks]; 0 where the content comes from the host.
        host_blocks: per group int32[num_blocks], 0 where it is on the device; empty if nothing comes from the host.
        num_adopted: blocks of all groups that are on the device.
        num_published: leading blocks that every group has on the device, so that they need not be published again.
        num_computed: tokens with KV.
        num_restored: those of them that come from the host.
    """

    device_blocks: tuple[Int32, ...]
    host_blocks: tuple[Int32, ...]
    num_adopted: int
    num_published: int
    num_computed: int
    num_restored: int

    @property
    def num_blocks(self) -> int:
        """Blocks per group that have content."""
        return len(self.device_blocks[0])


@dataclass(frozen=True)
class Candidate:
    """What admitting a waiting request means.

    Attributes:
        start: what it starts from.
        want: tokens to compute.
        long: whether the long-prefill cap applies to it.
        gate: blocks per group that must be there before it starts.
    """

    request: Request
    start: Start
    want: int
    long: bool
    gate: int


def look_up(state: SchedulerState, request: Request, capped: bool) -> Candidate:
    """What the request would start from now, and what it would need."""
    start = _swapped_start(state, request) if request.status is Status.SWAPPED else _prefix_start(state, request)
    want = request.num_tokens - start.num_computed
    gate = state.blocks_for(request.num_tokens)
    if request.num_preemptions:
        # One more, so that it grows at least once; but what fits alone runs to where it would have got alone.
        most = state.kv.pool.num_blocks // state.cache.num_groups
        gate = max(gate, min(state.blocks_for(request.num_tokens + 1), most))
    long = capped and want > state.config.long_prefill_token_threshold
    return Candidate(request, start, want, long, gate)


def _prefix_start(state: SchedulerState, request: Request) -> Start:
    """The longest prefix on the device, continued by what the host has of it."""
    size, groups = state.cache.block_size, state.cache.num_groups
    limit = (request.num_tokens - 1) // size if request.takes_hits else 0
    device = state.kv.find_hit(request.block_hashes, limit)
    num_hit = len(device[0])
    if state.kv.host is None or num_hit == limit:
        return Start(device, (), groups * num_hit, num_hit, num_hit * size, 0)
    host = state.kv.host.longest_run(request.block_hashes[num_hit:], limit - num_hit)
    num_more = len(host[0])
    if not num_more:
        return Start(device, (), groups * num_hit, num_hit, num_hit * size, 0)
    device_blocks = tuple(np.append(blocks, np.zeros(num_more, np.int32)) for blocks in device)
    host_blocks = tuple(np.append(np.zeros(num_hit, np.int32), blocks) for blocks in host)
    num_computed = (num_hit + num_more) * size
    return Start(device_blocks, host_blocks, groups * num_hit, num_hit, num_computed, num_more * size)


def _swapped_start(state: SchedulerState, request: Request) -> Start:
    """All it had: from the device what is still cached there, the rest from the host."""
    size, groups = state.cache.block_size, state.cache.num_groups
    num_computed = request.num_swapped_tokens
    num_blocks = len(request.host_tables[0])
    found = state.kv.find_each(request.block_hashes[: num_computed // size], num_blocks)
    on_device = np.all(np.stack(found) != 0, axis=0)
    device_blocks = tuple(np.where(on_device, blocks, 0).astype(np.int32) for blocks in found)
    host_blocks = tuple(np.where(on_device, 0, blocks).astype(np.int32) for blocks in request.host_tables)
    num_found = int(np.count_nonzero(on_device))
    # only the last block may be partly filled, and a block that is not full has no hash and is never on the device
    num_restored = num_computed - num_found * size
    num_published = num_blocks if num_found == num_blocks else int(np.argmin(on_device))
    return Start(device_blocks, host_blocks, groups * num_found, num_published, num_computed, num_restored)
