"""What operators see of the whole server, as one JSON value: a pure view of one snapshot, for the page."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from headway.core.plan import Int32
from headway.core.reasons import ReasonCode
from headway.engine.explain import TITLES
from headway.engine.metrics import PHASES
from headway.engine.monitor import QUANTILES, EngineSnapshot, StepRecord, inter_token_latencies, quantiles
from headway.kv.stats import HitCounts
from headway.server.debug import RequestView
from headway.server.service import Service

MAX_LISTED = 200
"""Requests it has, running and waiting each; the list of requests (``/debug/requests``) has all."""


def server_state(snapshot: EngineSnapshot, service: Service) -> dict[str, Any]:
    """The whole server, for the page."""
    requests, seen = RequestView(snapshot, service), snapshot.inspection
    counters = snapshot.counters
    return {
        **requests.head(),
        "health": service.health().body(),
        "model": service.models[0],
        "limits": _limits(service),
        "requests": {
            "running": len(seen.rows),
            "waiting": len(seen.waiting),
            "swapped": seen.num_swapped,
            "draining": seen.num_draining,
            "rows": list(islice(requests.running(), MAX_LISTED)),
            "queue": list(islice(requests.waiting(), MAX_LISTED)),
            "waiting_by_reason": _by_reason(seen.waiting_counts()),
            "unserved_by_reason": _by_reason(seen.row_counts()),
        },
        "pool": _pool(snapshot),
        "memory": dataclasses.asdict(snapshot.memory),
        "steps": _steps(snapshot),
        "latencies": _latencies(snapshot),
        "prefix_cache": _prefix_cache(snapshot, service),
        "admission": _admission(service),
        "finished": counters.requests_finished,
        "refused": counters.requests_refused,
        "preemptions": [
            {"kind": kind, "cause": cause, "count": count} for (kind, cause), count in counters.preemptions.items()
        ],
        "tokens": {
            "computed": counters.computed_tokens,
            "generated": counters.generation_tokens,
            "lost": sum(counters.lost_tokens.values()),
            "recomputed": counters.recomputed_tokens,
            "restored": counters.restored_tokens,
        },
    }


def _limits(service: Service) -> dict[str, Any]:
    engine = service.engine.engine
    config, cache = engine.scheduler.config, engine.scheduler.cache
    return {
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_model_len": config.max_model_len,
        "scheduling_policy": config.scheduling_policy,
        "num_blocks": cache.num_blocks,
        "block_size": cache.block_size,
        "largest_prompt": min(config.max_model_len - 1, engine.scheduler.largest_prompt),
        "sentences": engine.limits,
    }


def _by_reason(counts: dict[ReasonCode, int]) -> list[dict[str, Any]]:
    return [{"code": code.value, "title": TITLES[code], "count": count} for code, count in counts.items() if count]


def _pool(snapshot: EngineSnapshot) -> dict[str, Any]:
    pool = snapshot.inspection.pool
    held = pool.num_blocks - pool.num_free
    return {
        "num_blocks": pool.num_blocks,
        "held": held,
        "cached": pool.num_free_cached,
        "free": pool.num_free - pool.num_free_cached,
        "usage": held / pool.num_blocks,
        "evicted": pool.stats.evicted,
        "host_blocks": pool.num_host_blocks,
        "host_free": pool.num_host_free,
        "runs": run_lengths(pool.owners),
    }


def run_lengths(owners: Int32) -> list[int]:
    """Owner and length of every run of blocks that have the same owner, one after the other."""
    if not len(owners):
        return []
    starts = np.concatenate([[0], np.flatnonzero(np.diff(owners)) + 1])
    lengths = np.diff(starts, append=len(owners))
    runs: list[int] = np.stack([owners[starts], lengths], axis=1).ravel().tolist()
    return runs


def _steps(snapshot: EngineSnapshot) -> dict[str, Any]:
    """The last steps as a table, oldest first, times in seconds before the snapshot; and their parts on average."""
    names = [name for name in StepRecord._fields if name not in ("at_s", "seconds")]
    return {
        "mean_s": _mean_parts(snapshot.steps),
        "columns": ["ago_s", *names],
        "rows": [
            (
                round(snapshot.at_s - record.at_s, 3),
                record.step,
                record.decode_tokens,
                record.prefill_tokens,
                record.rows,
                record.running,
                record.waiting,
                round(record.kv_usage, 4),
                round(record.step_s, 6),
            )
            for record in snapshot.steps
        ],
    }


def _mean_parts(steps: Sequence[StepRecord]) -> dict[str, float]:
    """Seconds per step, by phase; what no phase accounts for is "other"."""
    if not steps:
        return {}
    sums = {phase: sum(record.seconds.get(phase, 0.0) for record in steps) for phase in PHASES}
    sums["other"] = max(0.0, sum(record.step_s for record in steps) - sum(sums.values()))
    return {phase: total / len(steps) for phase, total in sums.items()}


def _latencies(snapshot: EngineSnapshot) -> dict[str, Any]:
    """Quantiles in seconds of what was observed lately, and of how many observations; ``None`` without any."""
    recent = snapshot.recent
    gaps, rows = inter_token_latencies(snapshot.steps)
    values = {
        "queue_s": (recent.queue_s, None),
        "ttft_s": (recent.ttft_s, None),
        "itl_s": (gaps, rows),
        "tpot_s": (recent.tpot_s, None),
        "e2e_s": (recent.e2e_s, None),
    }
    found = {
        name: {"quantiles": quantiles(each, weights), "count": int(len(each) if weights is None else weights.sum())}
        for name, (each, weights) in values.items()
    }
    return {"levels": QUANTILES, **found}


def _prefix_cache(snapshot: EngineSnapshot, service: Service) -> dict[str, Any]:
    cache, prefix = service.engine.engine.scheduler.cache, snapshot.inspection.pool.prefix
    prompt_tokens, found = (int(total) for total in snapshot.recent.reuse.sum(axis=0))
    return {
        "enabled": cache.enable_prefix_caching,
        "match_unit_tokens": cache.block_size,
        "recent": {
            "requests": len(snapshot.recent.reuse),
            "hit_rate": found / prompt_tokens if prompt_tokens else None,
        },
        "first": _hits(prefix.first),
        "resumed": _hits(prefix.resumed),
        "entries": snapshot.inspection.pool.num_entries,
    }


def _hits(counts: HitCounts) -> dict[str, Any]:
    return {
        "requests": counts.requests,
        "hits": counts.hits,
        "too_short": counts.too_short,
        "query_tokens": counts.query_tokens,
        "hit_tokens": counts.hit_tokens,
        "host_tokens": counts.host_tokens,
    }


def _admission(service: Service) -> dict[str, Any]:
    admission = service.admission
    return {
        "requests": admission.num_requests,
        "max_requests": admission.max_requests,
        "tokens": admission.num_tokens,
        "max_tokens": admission.max_tokens,
        "turned_away": admission.turned_away,
    }
