"""What the phases of a step share, and the two moves that every phase needs: a row enters, a row leaves."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from headway.config import CacheConfig, SchedulerConfig
from headway.core.columns import Columns
from headway.core.cost import CostModel
from headway.core.events import Event, Finished
from headway.core.output_lengths import OutputLengths
from headway.core.plan import Int32
from headway.core.policies import Policy, make_policy
from headway.core.prefix_watch import PrefixWatch
from headway.core.queues import RowOrder, WaitingQueue
from headway.core.reasons import ReasonCode, WaitReason
from headway.core.request import FinishReason, Request, Status
from headway.kv.coordinator import KVCoordinator
from headway.kv.hashing import extend_hashes


@dataclass
class SchedulerState:
    """Everything the scheduler knows. The phases (`tokens`, `blocks`, `admission`, `results`) are functions over it."""

    config: SchedulerConfig
    cache: CacheConfig
    kv: KVCoordinator
    policy: Policy
    columns: Columns
    waiting: WaitingQueue = field(default_factory=WaitingQueue)
    rows: RowOrder = field(default_factory=RowOrder)
    watch: PrefixWatch = field(default_factory=PrefixWatch)
    live: dict[int, Request] = field(default_factory=dict)
    """By handle."""
    names: dict[str, int] = field(default_factory=dict)
    """Request id -> handle of every live request."""
    slot_of: dict[int, int] = field(default_factory=dict)
    """handle -> slot of every row (draining ones are not live and not in it)."""
    events: list[Event] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)
    """Exceptions that ended an admission, for whoever keeps a log."""
    released: list[int] = field(default_factory=list)
    """Slots whose request left since the last plan with rows."""
    preempted: list[Request] = field(default_factory=list)
    """Preempted in the step being made; they join the waiting queue when it is made."""
    swap_out: list[Int32] = field(default_factory=list)
    """int32[k, 2] copies (device, host) that no plan has carried yet."""
    swap_in: list[Int32] = field(default_factory=list)
    """int32[k, 2] copies (host, device) of the step being made."""
    host_releases: list[tuple[Int32, ...]] = field(default_factory=list)
    """Host blocks that the step being made reads; they are given back when it is made."""
    output_lengths: OutputLengths = field(default_factory=OutputLengths)
    cost: CostModel = field(default_factory=CostModel)
    passed: dict[int, WaitReason] = field(default_factory=dict)
    """handle -> reason, for waiting requests with a reason of their own in the last step."""
    rest_reason: ReasonCode = ReasonCode.QUEUE_POSITION
    """Reason of all other waiting requests in the last step."""
    step: int = 0
    now: float = 0.0
    steps_since_prefill: int | None = None
    num_plans_inflight: int = 0

    @staticmethod
    def create(config: SchedulerConfig, cache: CacheConfig) -> SchedulerState:
        """An empty state."""
        policy = make_policy(config)
        return SchedulerState(config, cache, KVCoordinator(cache), policy, Columns(config, cache))

    def num_hit_tokens(self, request: Request) -> int:
        """Tokens that a request would find in the prefix cache of the device now."""
        limit = (request.num_tokens - 1) // self.cache.block_size if request.takes_hits else 0
        return len(self.kv.find_hit(request.block_hashes, limit)[0]) * self.cache.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold this many tokens, in one group."""
        return -(-num_tokens // self.cache.block_size)

    # --- leaving -----------------------------------------------------------------------------------------

    def end_rows(self, slots: list[int], reasons: list[FinishReason], messages: list[str]) -> list[Finished]:
        """End running requests. Blocks and slots go back now, or once no step in flight touches them."""
        columns = self.columns
        if slots:
            self.rows.remove([columns.request(slot).order_key for slot in slots])
        finished = []
        for slot, reason, message in zip(slots, reasons, messages, strict=True):
            request = columns.request(slot)
            self.write_back(slot, request)
            finished.append(self.finish(request, reason, message))
            if columns.frames[slot]:
                self.watch.clear(slot)
                del self.slot_of[request.handle]
                columns.drain(slot)
            else:
                self.release(slot)
        return finished

    def end_waiting(self, request: Request, reason: FinishReason, message: str = "") -> Finished:
        """End a request that is in no slot and no longer in the queue; its host blocks wait to be flushed."""
        self.passed.pop(request.handle, None)
        if request.status is Status.SWAPPED:
            self.host_releases.append(request.host_tables)
            request.host_tables = ()
        return self.finish(request, reason, message)

    def flush_host_releases(self) -> None:
        """Give host blocks back whose content no plan in the making reads any more."""
        for tables in self.host_releases:
            if self.kv.host is not None:
                self.kv.host.release(tables)
        self.host_releases.clear()

    def release(self, slot: int) -> None:
        """Give back the blocks and the slot of a row that no step in flight touches."""
        columns = self.columns
        request = columns.request(slot)
        self.slot_of.pop(request.handle, None)
        self.watch.clear(slot)
        if columns.held[slot]:
            self.kv.pool.free(self.kv.release_order(columns.block_ids(slot)))
        self.released.append(slot)  # first, so that a slot that is free has been told of (recovery.py)
        columns.leave(slot)

    def write_back(self, slot: int, request: Request) -> None:
        """Bring the tokens delivered so far back into the request, which is about to leave its slot."""
        request.tokens = self.columns.tokens[slot, : self.columns.known[slot]].copy()

    def finish(self, request: Request, reason: FinishReason, message: str = "") -> Finished:
        """End a request that is in no slot and no queue any more."""
        if request.status is not Status.FINISHED:
            request.move(Status.FINISHED)
        request.finish_reason = reason
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self.output_lengths.add(request.num_output_tokens)
        self.live.pop(request.handle, None)
        self.names.pop(request.request_id, None)
        stop_token_id = None
        if reason is FinishReason.STOP and request.tokens[-1] not in request.end_of_text_ids:
            stop_token_id = int(request.tokens[-1])
        event = Finished(
            request.handle,
            request.request_id,
            self.step,
            self.now,
            reason,
            request.num_prompt_tokens,
            request.num_output_tokens,
            request.num_cached_tokens,
            request.num_preemptions,
            stop_token_id,
            message,
        )
        self.events.append(event)
        return event

    def watch_row(self, slot: int) -> None:
        """Note what block the row will publish next, if that is one of the tokens it knew when it entered its slot."""
        request, published = self.columns.request(slot), int(self.columns.published[slot])
        publishes = self.cache.enable_prefix_caching and request.takes_hits
        if publishes and published < request.num_tokens // self.cache.block_size:
            self.watch.set(slot, request.block_hashes[published])

    # --- hashes and blocks -------------------------------------------------------------------------------

    def extend_hashes(self, request: Request, tokens: Int32) -> None:
        """Bring the request's block hashes up to the full blocks of ``tokens``."""
        size = self.cache.block_size
        extend_hashes(request.block_hashes, request.hash_root, tokens, size, len(tokens) // size)

    def append_blocks(self, slots: Int32, counts: Int32) -> tuple[Int32, Int32, Int32]:
        """Take ``counts[i] >= 1`` blocks per group for each slot and enter them in the tables.

        Returns:
            slots int32[k], index int32[k] and block ids int32[k, groups]: row by row, index by index.
        """
        columns, groups = self.columns, self.cache.num_groups
        held = columns.held[slots]
        total = int(counts.sum())
        if total == len(slots):
            repeated, index = slots, held
        else:
            repeated = np.repeat(slots, counts)
            first = np.cumsum(counts) - counts
            index = np.arange(total, dtype=np.int32) - np.repeat(first - held, counts).astype(np.int32)
        block_ids = self.kv.pool.take(total * groups).reshape(total, groups)
        for group, table in enumerate(columns.tables):
            table[repeated, index] = block_ids[:, group]
        columns.held[slots] = held + counts
        return repeated, index, block_ids
