"""Makes every decision of a recorded run again, so that a trace of plans tells all that the scheduler knew.

The same ``Scheduler`` gets the same requests, aborts and results in the same order. Its plans must be those of the
trace; what the trace does not hold (events, reasons for waiting, the state of the KV pool) is then that of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headway.core.events import Event
from headway.core.plan import StepPlan
from headway.core.reasons import WaitReason
from headway.core.scheduler import Scheduler
from headway.engine.trace import TraceReader
from headway.engine.trace_records import plan_to_json, request_from_json, result_from_json


class ReplayDiffers(Exception):
    """The scheduler decided something else than the trace says: it was written by another version, or changed.

    Attributes:
        step: the first step that differs.
        field: the part of the plan that differs.
    """

    def __init__(self, step: int, field: str) -> None:
        super().__init__(
            f"step {step} of the trace cannot be repeated: its {field} differ from what this version decides"
        )
        self.step = step
        self.field = field


@dataclass(frozen=True)
class ReplayedStep:
    """One decision of the run, with what was known when it was made.

    Attributes:
        plan: what was to run; may have no rows.
        events: what happened since the step before, in order, up to and with this decision. After the last plan
            there is one more record without rows for what its result brought.
        aborts: why requests were aborted since the step before, by handle.
        reasons: why live requests were not served, by request id.
        num_held, num_cached: KV blocks that requests hold, and free ones whose content can still be found.
    """

    plan: StepPlan | None
    events: tuple[Event, ...]
    aborts: dict[int, str]
    reasons: dict[str, WaitReason]
    num_held: int
    num_cached: int


class Replay:
    """Runs a trace again. Iterate once.

    Args:
        trace: an open trace.

    Raises (while iterating):
        TraceError: the trace is damaged.
        ReplayDiffers: a plan is not the recorded one.
    """

    def __init__(self, trace: TraceReader) -> None:
        self._trace = trace
        self._scheduler = Scheduler(trace.header.scheduler, trace.header.cache)
        self._plans: dict[int, StepPlan] = {}
        self._aborts: dict[int, str] = {}

    def __iter__(self) -> Iterator[ReplayedStep]:
        for line in self._trace:
            kind = line["kind"]
            if kind == "add":
                self._scheduler.add(request_from_json(line), line.get("arrival_s", 0.0))
            elif kind == "abort":
                self._scheduler.abort(line["handle"], 0.0)
                self._aborts[line["handle"]] = line["why"]
            elif kind == "plan":
                yield self._record(self._repeat(line))
            elif kind == "result":
                self._scheduler.update(self._plans.pop(line["step"]), result_from_json(line), 0.0)
        yield self._record(None)

    def _repeat(self, line: dict[str, Any]) -> StepPlan:
        plan = self._scheduler.schedule(line.get("now", 0.0))
        for field, value in plan_to_json(plan).items():
            if line.get(field) != value:
                raise ReplayDiffers(line["step"], field)
        if plan.num_rows:
            self._plans[plan.step] = plan
        return plan

    def _record(self, plan: StepPlan | None) -> ReplayedStep:
        pool = self._scheduler.kv.pool
        aborts, self._aborts = self._aborts, {}
        return ReplayedStep(
            plan=plan,
            events=tuple(self._scheduler.take_events()),
            aborts=aborts,
            reasons=self._scheduler.wait_reasons(),
            num_held=pool.num_blocks - pool.num_free,
            num_cached=pool.num_free_cached,
        )
