"""What operators see of requests and of the whole server, as JSON values: pure views of one snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy as np

from headway.core.plan import Int32
from headway.core.reasons import ReasonCode, WaitReason
from headway.core.request import Status
from headway.engine.explain import STATES, TITLES, blockers, explain
from headway.engine.monitor import QUANTILES, EngineSnapshot, StepRecord, inter_token_latencies, quantiles
from headway.engine.waits import Mark
from headway.kv.stats import HitCounts
from headway.server.service import Service

MAX_LISTED = 200
"""Requests in the state of the server, running and waiting each; the list of requests has all."""

MAX_REQUESTS = 10_000
"""Requests that one list has at most."""


@dataclass(frozen=True)
class RequestView:
    """Requests of one snapshot, as JSON values.

    Args:
        snapshot: of the engine.
        service: for its limits.
    """

    snapshot: EngineSnapshot
    service: Service

    @cached_property
    def _blockers(self) -> dict[tuple[ReasonCode, str, bool], list[str]]:
        return {}

    def running(self) -> Iterator[dict[str, Any]]:
        """Requests in a slot, in policy order."""
        seen, rows = self.snapshot.inspection, self.snapshot.inspection.rows
        numbers = zip(
            rows.slots.tolist(),
            rows.num_prompt_tokens.tolist(),
            rows.known.tolist(),
            rows.computed.tolist(),
            rows.inflight.tolist(),
            rows.end_len.tolist(),
            rows.held.tolist(),
            rows.num_cached_tokens.tolist(),
            strict=True,
        )
        for row, (slot, prompt, known, computed, inflight, end, held, cached) in enumerate(numbers):
            reason, since = seen.reason_of_row(row), self.snapshot.waits.of_row(slot)
            yield {
                "request_id": rows.request_ids[row],
                "state": Status.RUNNING.value,
                "slot": slot,
                "place": None,
                **self._times(float(rows.arrival_s[row]), since),
                "reason": None if reason is None else self._reason(reason, runs=True),
                "num_prompt_tokens": prompt,
                "num_known_tokens": known,
                "num_computed_tokens": computed,
                "num_inflight_tokens": inflight,
                "num_cached_tokens": cached,
                "num_output_tokens": known - prompt,
                "max_tokens_in_all": end,
                "num_blocks": held * self._num_groups,
                **self._setbacks(int(rows.handles[row]), int(rows.num_preemptions[row])),
            }

    def waiting(self) -> Iterator[dict[str, Any]]:
        """Requests without a slot, in the order of the queue."""
        seen = self.snapshot.inspection
        for place, waiter in enumerate(seen.waiting):
            known, swapped = len(waiter.tokens), waiter.status is Status.SWAPPED
            yield {
                "request_id": waiter.request_id,
                "state": waiter.status.value,
                "slot": None,
                "place": place,
                **self._times(waiter.arrival_s, self.snapshot.waits.of_waiter(waiter.handle)),
                "reason": self._reason(seen.reason_of_waiter(place), runs=False),
                "num_prompt_tokens": waiter.num_prompt_tokens,
                "num_known_tokens": known,
                "num_computed_tokens": waiter.num_swapped_tokens if swapped else 0,
                "num_inflight_tokens": 0,
                "num_cached_tokens": waiter.num_cached_tokens,
                "num_output_tokens": known - waiter.num_prompt_tokens,
                "max_tokens_in_all": None,
                "num_blocks": 0,
                **self._setbacks(waiter.handle, waiter.num_preemptions),
            }

    def all(self, limit: int) -> dict[str, Any]:
        """The first ``limit`` requests, running ones first."""
        seen = self.snapshot.inspection
        return {
            **self.head(),
            "running": len(seen.rows),
            "waiting": len(seen.waiting),
            "requests": list(islice(chain(self.running(), self.waiting()), limit)),
        }

    def of_call(self, request_id: str) -> dict[str, Any] | None:
        """The requests of one call: its own, or those of its prompts and choices; ``None`` if it is not there."""
        of_several = f"{request_id}#"
        found = [
            entry
            for entry in chain(self.running(), self.waiting())
            if entry["request_id"] == request_id or entry["request_id"].startswith(of_several)
        ]
        if not found and request_id not in self.service.calls:
            return None
        return {**self.head(), "request_id": request_id, "state": _state_of_call(found), "requests": found}

    def head(self) -> dict[str, Any]:
        """When this was."""
        return {
            "snapshot_age_s": round(max(0.0, self.service.engine.now() - self.snapshot.taken_s), 3),
            "step": self.snapshot.inspection.step,
        }

    @property
    def _num_groups(self) -> int:
        return self.service.engine.engine.scheduler.cache.num_groups

    def _times(self, arrival_s: float, since: Mark) -> dict[str, Any]:
        """How long it is here, and how long what it does now goes on."""
        now = self.snapshot.at_s
        return {
            "age_s": round(max(0.0, now - arrival_s), 3),
            "since_step": since.step,
            "since_s": round(max(0.0, now - since.at_s), 3),
        }

    def _setbacks(self, handle: int, num_preemptions: int) -> dict[str, Any]:
        setback = self.snapshot.setbacks.get(handle)
        return {
            "num_preemptions": num_preemptions,
            "num_lost_tokens": setback.num_lost_tokens if setback is not None else 0,
            "preempted_by": (setback.by or None) if setback is not None else None,
        }

    def _reason(self, reason: WaitReason, *, runs: bool) -> dict[str, Any]:
        scheduler = self.service.engine.engine.scheduler
        words = explain(reason, scheduler.config, scheduler.cache, runs=runs)
        key = (reason.code, reason.by, reason.need > 0)
        if key not in self._blockers:
            self._blockers[key] = list(blockers(reason, self.snapshot.inspection))
        return {
            "code": reason.code.value,
            "title": words.title,
            "text": words.text,
            "release": words.release,
            "step": reason.step,
            "need": reason.need,
            "free": reason.free,
            "by": self._blockers[key],
        }


def _state_of_call(found: list[dict[str, Any]]) -> str:
    """What the call as a whole does: the furthest of its requests."""
    states = [entry["state"] for entry in found]
    if not states:
        return "arriving"  # it is being tokenised, or came after the snapshot
    return Status.RUNNING.value if Status.RUNNING.value in states else str(states[0])


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
        "states": {status.value: words for status, words in STATES.items()},
        "pool": _pool(snapshot),
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
    """The last steps as a table, oldest first; times in seconds before the snapshot."""
    return {
        "columns": ("ago_s", *(name for name in StepRecord._fields if name != "at_s")),
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
