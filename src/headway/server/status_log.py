"""A line now and then on what the server does, in the words of ``engine/explain.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from headway.engine.explain import counted, describe_waiting
from headway.engine.monitor import EngineSnapshot
from headway.server.service import Service


@dataclass(frozen=True)
class Moment:
    """What a line compares: two of these make one.

    Attributes:
        snapshot: of the engine.
        turned_away: calls that admission refused so far.
    """

    snapshot: EngineSnapshot
    turned_away: int


def status_line(before: Moment, now: Moment) -> str:
    """What is going on and what happened since; empty if nothing did."""
    old, new = before.snapshot.counters, now.snapshot.counters
    seen = now.snapshot.inspection
    turned_away = now.turned_away - before.turned_away
    if new.steps == old.steps and not len(seen.rows) and not seen.waiting and not turned_away:
        return ""
    reasons = describe_waiting(seen.waiting_counts())
    seconds = max(now.snapshot.at_s - before.snapshot.at_s, 1e-9)
    parts = [
        f"{len(seen.rows):,} running, {len(seen.waiting):,} waiting" + (f" ({reasons})" if reasons else ""),
        f"{1 - seen.pool.num_free / seen.pool.num_blocks:.0%} of the KV blocks held",
        f"{(new.sampled_tokens - old.sampled_tokens) / seconds:,.0f} tokens/s sampled,"
        f" {(new.computed_tokens - old.computed_tokens) / seconds:,.0f} computed",
    ]
    queries = new.prompt_tokens - old.prompt_tokens
    if queries:
        parts.append(f"{(new.cached_tokens - old.cached_tokens) / queries:.0%} of new prompts cached")
    preemptions = sum(new.preemptions.values()) - sum(old.preemptions.values())
    happened = (
        (preemptions, "preemption", ""),
        (turned_away, "call", " turned away"),
        (new.steps_failed - old.steps_failed, "failed step", ""),
    )
    parts += [counted(count, what) + how for count, what, how in happened if count]
    return "; ".join(parts)


async def report_status(service: Service, interval_s: float, say: Callable[[str], None]) -> None:
    """Say a line every ``interval_s`` while something is going on; does not end by itself."""
    before = await _look(service)
    while True:
        await asyncio.sleep(interval_s)
        now = await _look(service)
        line = status_line(before, now)
        if line:
            say(line)
        before = now


async def _look(service: Service) -> Moment:
    return Moment(await service.engine.snapshot(), sum(service.admission.turned_away.values()))
