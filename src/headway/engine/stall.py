"""The whole state of a scheduler in which nothing moves, for the report of a bug that should never happen."""

from __future__ import annotations

from collections.abc import Iterator

from headway.core.inspection import Inspection
from headway.core.reasons import WaitReason
from headway.core.scheduler import Scheduler

MAX_LISTED = 64
"""So many running and so many waiting requests are listed at most."""


def describe_state(scheduler: Scheduler) -> str:
    """Pools, rows in policy order and the queue, a line each, with every reason for waiting."""
    seen = scheduler.inspect()
    return "\n".join([*_pools(seen), *_rows(seen), *_queue(seen)])


def _pools(seen: Inspection) -> Iterator[str]:
    pool = seen.pool
    yield (
        f"step {seen.step}; KV blocks: {pool.num_free} of {pool.num_blocks} free, {pool.num_free_cached} of those"
        f" cached; on the host {pool.num_host_free} of {pool.num_host_blocks} free; {seen.num_draining} slots draining"
    )


def _rows(seen: Inspection) -> Iterator[str]:
    rows = seen.rows
    yield f"running: {len(rows)}"
    for row, name in enumerate(rows.request_ids[:MAX_LISTED]):
        yield (
            f"  {name} in slot {rows.slots[row]}: {rows.known[row]} tokens known, {rows.computed[row]} computed,"
            f" {rows.inflight[row]} in flight, ends at {rows.end_len[row]} at the latest, holds {rows.held[row]} blocks"
            f" per group, preempted {rows.num_preemptions[row]} times; {_reason(seen.reason_of_row(row))}"
        )
    yield from _rest(len(rows))


def _queue(seen: Inspection) -> Iterator[str]:
    yield f"waiting: {len(seen.waiting)}"
    for place, waiter in enumerate(seen.waiting[:MAX_LISTED]):
        yield (
            f"  {waiter.request_id} ({waiter.status.value}): {len(waiter.tokens)} tokens known,"
            f" {waiter.num_swapped_tokens} on the host, preempted {waiter.num_preemptions} times;"
            f" {_reason(seen.reason_of_waiter(place))}"
        )
    yield from _rest(len(seen.waiting))


def _reason(reason: WaitReason | None) -> str:
    if reason is None:
        return "was served"
    by = f", by {reason.by}" if reason.by else ""
    why = f": {reason.why}" if reason.why else ""
    return f"{reason.code.value} (need {reason.need}, free {reason.free}{by}){why}"


def _rest(count: int) -> Iterator[str]:
    if count > MAX_LISTED:
        yield f"  and {count - MAX_LISTED} more"
