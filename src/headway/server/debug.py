"""What operators see of requests, as JSON values: pure views of one snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any

from headway.core.reasons import ReasonCode, WaitReason
from headway.core.request import Status
from headway.engine.explain import STATES, blockers, explain
from headway.engine.monitor import EngineSnapshot
from headway.engine.waits import Mark
from headway.server.service import Service

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
                "state_text": STATES[Status.RUNNING],
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
                "state_text": STATES[waiter.status],
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
        words = explain(reason, scheduler.config, scheduler.cache, runs=runs, now=self.snapshot.at_s)
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
            "why": reason.why or None,
        }


def _state_of_call(found: list[dict[str, Any]]) -> str:
    """What the call as a whole does: the furthest of its requests."""
    states = [entry["state"] for entry in found]
    if not states:
        return "arriving"  # it is being tokenised, or came after the snapshot
    return Status.RUNNING.value if Status.RUNNING.value in states else str(states[0])
