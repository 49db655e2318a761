"""What `update` does with a step's result (docs/design/step.md, 'update')."""

from __future__ import annotations

import numpy as np

from headway.core.events import Finished, StepOutput
from headway.core.plan import Bool, Int32, StepPlan, StepResult
from headway.core.preemption import lose_host_blocks
from headway.core.request import FinishReason
from headway.core.state import SchedulerState
from headway.kv.hashing import hash_blocks


def apply_result(state: SchedulerState, plan: StepPlan, result: StepResult) -> StepOutput:
    """Settle the plan's tokens, append what was sampled, publish full blocks, end what ended."""
    columns = state.columns
    slots = plan.slots
    columns.inflight[slots] -= plan.num_scheduled
    columns.frames[slots] -= 1
    columns.placeholders[slots] -= plan.samples
    live: Bool | None = None
    if columns.num_draining or result.failed:
        live = ~columns.draining[slots]
        _release_drained(state, slots[~live])
    lose_host_blocks(state, plan.swap_out[:, 1] if result.lost_plan else result.lost_host_blocks)
    finished = _end_failed(state, plan, result, live)

    sampled = result.counts > 0 if live is None else (result.counts > 0) & live
    rows = np.flatnonzero(sampled).astype(np.int32)
    tokens, counts, stopped = _deliver(state, slots[rows], result.tokens[rows], result.counts[rows])
    if state.policy.counts_tokens:
        served = np.bincount(columns.tenant[slots[rows]], weights=counts).astype(np.int64)
        there = np.flatnonzero(served)  # tenants come and go; those that are gone must cost nothing
        state.policy.delivered([columns.tenants[tenant] for tenant in there.tolist()], served[there])
    output_handles = columns.handle[slots[rows]]
    if state.cache.enable_prefix_caching:
        publish_full_blocks(state, slots if live is None else slots[live])
    ending = slots[rows[stopped]]
    if len(ending):
        reasons = [_stop_reason(state, int(slot)) for slot in ending]
        finished += state.end_rows(ending.tolist(), reasons, [""] * len(ending))
    return StepOutput(plan.step, rows, output_handles, tokens, counts, tuple(finished))


def _release_drained(state: SchedulerState, slots: Int32) -> None:
    for slot in slots.tolist():
        if state.columns.frames[slot] == 0:
            state.release(slot)


def _end_failed(state: SchedulerState, plan: StepPlan, result: StepResult, live: Bool | None) -> list[Finished]:
    """End the requests of failed rows; their rows count as not live from here on.

    If the plan is lost as a whole, the rows that it gave blocks but no tokens end as well: the executor does not know
    of those blocks.
    """
    if live is None:
        return []
    failed = [row for row in sorted(result.failed) if live[row]]
    live[failed] = False
    slots = plan.slots[failed].tolist()
    messages = [result.failed[row] for row in failed]
    if result.lost_plan:
        uninformed = _rows_with_unknown_blocks(state, plan)
        slots += uninformed
        messages += ["a step failed that was to bring it KV blocks"] * len(uninformed)
    return state.end_rows(slots, [FinishReason.ERROR] * len(slots), messages)


def _rows_with_unknown_blocks(state: SchedulerState, plan: StepPlan) -> list[int]:
    """Slots of rows that hold blocks which only this plan tells of, and that are not in it."""
    columns, planned = state.columns, set(plan.slots.tolist())
    found: dict[int, None] = {}
    for table, new in zip(columns.tables, plan.new_blocks, strict=True):
        here = (new.index < columns.held[new.slots]) & (table[new.slots, new.index] == new.block_ids)
        found |= dict.fromkeys(new.slots[here & ~columns.draining[new.slots]].tolist())
    return [slot for slot in found if slot not in planned]


def _deliver(state: SchedulerState, slots: Int32, tokens: Int32, counts: Int32) -> tuple[Int32, Int32, Bool]:
    """Append sampled tokens up to the first stop.

    Returns:
        tokens int32[m, w] with cells beyond the count set to -1, counts int32[m], stopped bool[m].
    """
    columns = state.columns
    known = columns.known[slots]
    columns.protected[slots] = False
    if tokens.shape[1] == 1:
        columns.tokens[slots, known] = tokens[:, 0]
        known = known + 1
        columns.known[slots] = known
        return tokens, counts, _stops(state, slots, tokens[:, 0], known)
    tokens, counts = tokens.copy(), counts.copy()
    stopped = np.zeros(len(slots), np.bool_)
    for column in range(tokens.shape[1]):
        going = ~stopped & (column < counts)
        here = slots[going]
        columns.tokens[here, columns.known[here]] = tokens[going, column]
        columns.known[here] += 1
        stopped[going] = _stops(state, here, tokens[going, column], columns.known[here])
        counts[stopped & going] = column + 1
    tokens[np.arange(tokens.shape[1]) >= counts[:, None]] = -1
    return tokens, counts, stopped


def _stops(state: SchedulerState, slots: Int32, tokens: Int32, known: Int32) -> Bool:
    """Whether the request ends with this token, its ``known``-th: end-of-text or stop id, or length."""
    columns = state.columns
    by_token = (columns.stop_ids[slots] == tokens[:, None]).any(axis=1)
    by_length: Bool = known >= columns.end_len[slots]
    if by_token.any():
        by_length |= by_token & (known >= columns.min_len[slots])
    return by_length


def _stop_reason(state: SchedulerState, slot: int) -> FinishReason:
    columns = state.columns
    known = columns.known[slot]
    by_token = columns.tokens[slot, known - 1] in columns.stop_ids[slot] and known >= columns.min_len[slot]
    return FinishReason.STOP if by_token else FinishReason.LENGTH


def publish_full_blocks(state: SchedulerState, slots: Int32) -> None:
    """Offer the blocks that are full of settled, known tokens to the prefix index."""
    columns, size = state.columns, state.cache.block_size
    settled = np.minimum(columns.computed[slots] - columns.inflight[slots], columns.known[slots])
    full = settled // size
    due = (full > columns.published[slots]) & columns.shares[slots]
    if not due.any():
        return
    slots, full = slots[due], full[due]
    start = columns.published[slots]
    columns.published[slots] = full
    lists = [columns.block_hashes[slot] for slot in slots.tolist()]
    one_sampled = (columns.num_hashes[slots] == full - 1) & (start == full - 1)
    if one_sampled.all():  # steady decode: nothing but the blocks that were just filled by sampling
        hashes, index, repeated = _hash_next_block(state, slots, full, lists), start, slots
    else:
        hashes = _known_hashes(state, slots, start, full, lists)
        count = full - start
        index = np.arange(len(hashes)) - np.repeat(np.cumsum(count) - count - start, count)
        repeated = np.repeat(slots, count)
    for group, table in enumerate(columns.tables):
        state.kv.pool.publish(group, hashes, table[repeated, index])
    if len(state.watch):
        _move_watch(state, slots, full)


def _hash_next_block(state: SchedulerState, slots: Int32, full: Int32, lists: list[list[bytes]]) -> list[bytes]:
    """Hash block number ``full - 1`` of each row, the first without a hash: one per row, in bulk."""
    columns, size = state.columns, state.cache.block_size
    positions = (full[:, None] - 1) * size + np.arange(size)
    parents = [hashes[-1] if hashes else columns.request(slots[row]).hash_root for row, hashes in enumerate(lists)]
    added = hash_blocks(parents, columns.tokens[slots[:, None], positions])
    for hashes, block_hash in zip(lists, added, strict=True):
        hashes.append(block_hash)
    columns.num_hashes[slots] = full
    return added


def _known_hashes(
    state: SchedulerState, slots: Int32, start: Int32, full: Int32, lists: list[list[bytes]]
) -> list[bytes]:
    """Hashes of blocks ``start .. full - 1`` of each row, row by row; what has none yet is hashed."""
    columns, size = state.columns, state.cache.block_size
    missing = full - columns.num_hashes[slots]
    for row in np.flatnonzero(missing > 1).tolist():
        state.extend_hashes(columns.request(slots[row]), columns.tokens[slots[row], : full[row] * size])
        columns.num_hashes[slots[row]] = full[row]
    rows = np.flatnonzero(missing == 1)
    if len(rows):
        _hash_next_block(state, slots[rows], full[rows], [lists[row] for row in rows.tolist()])
    known: list[bytes] = []
    for hashes, first, last in zip(lists, start.tolist(), full.tolist(), strict=True):
        known += hashes[first:last]
    return known


def _move_watch(state: SchedulerState, slots: Int32, full: Int32) -> None:
    """Rows that were watched are now about to publish a later block, or none that was known at admission."""
    for slot, blocks in zip(slots.tolist(), full.tolist(), strict=True):
        if slot not in state.watch:
            continue
        request = state.columns.request(slot)
        if blocks < request.num_tokens // state.cache.block_size:
            state.watch.set(slot, request.block_hashes[blocks])
        else:
            state.watch.clear(slot)
