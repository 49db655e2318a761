"""The columnar scheduler and the sequential one side by side: equal plans, block ids, copies, reasons and endings."""

from __future__ import annotations

from collections.abc import Sequence

from headway.config import CacheConfig, SchedulerConfig
from headway.core.events import Event, Finished, Preempted, StepOutput
from headway.core.plan import Int32, StepPlan, StepResult
from headway.core.reasons import WaitReason
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from tests.core.builders import PrefixModel, Run, drive
from tests.core.oracle import Oracle
from tests.core.oracle_entry import OracleStep
from tests.core.properties import StepChecker
from tests.core.workloads import VOCABULARY, Workload


class Lockstep(StepChecker):
    """Runs the oracle beside the scheduler and compares after every call."""

    def __init__(self, config: SchedulerConfig, cache: CacheConfig) -> None:
        super().__init__(config, cache)
        self.oracle = Oracle(config, cache)
        self.finished: list[tuple[str, str, list[int]]] = []

    def added(self, request: Request) -> None:
        assert self.oracle.add(request, request.arrival_s), f"the oracle refuses {request}"
        super().added(request)

    def refused(self, request: Request) -> None:
        assert not self.oracle.add(request, 0.0), f"the oracle takes {request}"

    def outside(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Finished):
                self.oracle.abort(event.request_id)
        super().outside(events)
        self._compare_endings(events)

    def scheduled(self, scheduler: Scheduler, plan: StepPlan, events: Sequence[Event]) -> None:
        self.oracle.kinds = {event.request_id: event.kind for event in events if isinstance(event, Preempted)}
        expected = self.oracle.schedule(plan.step)
        names = {book.slot: book.name for book in self.live.values() if book.slot is not None}
        found = plain(plan, names, events, scheduler.wait_reasons())
        for name, wanted in vars(expected).items():
            assert getattr(found, name) == wanted, self.broken(name, f"\n {found} but the oracle says\n {expected}")
        super().scheduled(scheduler, plan, events)
        self._compare_endings(events)
        self._compare_pools(scheduler)

    def updated(
        self, scheduler: Scheduler, plan: StepPlan, result: StepResult, output: StepOutput, events: Sequence[Event]
    ) -> None:
        names = [row[0].name for row in self.rows_of[plan.step]]
        sampled = [int(token) if count else None for (token,), count in zip(result.tokens, result.counts, strict=True)]
        expected = self.oracle.update(sampled, set(result.failed))
        found = [(names[row], int(token)) for row, (token,) in zip(output.rows, output.tokens, strict=True)]
        assert found == expected, self.broken("update", f"{found} delivered, the oracle says {expected}")
        super().updated(scheduler, plan, result, output, events)
        self._compare_endings(events)
        self._compare_pools(scheduler)

    def _compare_endings(self, events: Sequence[Event]) -> None:
        ended = [(event.request_id, event.reason.value) for event in events if isinstance(event, Finished)]
        expected = [(name, reason) for name, reason, _ in self.oracle.finished]
        assert ended == expected, self.broken("endings", f"{ended}, the oracle says {self.oracle.finished}")
        self.oracle.finished.clear()

    def _compare_pools(self, scheduler: Scheduler) -> None:
        tiers = [(scheduler.kv.pool, self.oracle.pool)]
        if scheduler.kv.host is not None:
            tiers.append((scheduler.kv.host.pool, self.oracle.host))
        for pool, other in tiers:
            found, expected = (pool.num_free, pool.num_entries), (other.num_free, len(other.index))
            assert found == expected, self.broken("pool", f"(free, cached) is {found}, the oracle says {expected}")


def plain(plan: StepPlan, names: dict[int, str], events: Sequence[Event], reasons: dict[str, WaitReason]) -> OracleStep:
    """A plan in the oracle's form. ``names``: slot -> request of the rows that were there before."""
    names = names | {row.slot: row.request_id for row in plan.admitted}
    columns = zip(
        plan.slots.tolist(), plan.num_scheduled.tolist(), plan.starts.tolist(), plan.samples.tolist(), strict=True
    )
    return OracleStep(
        rows=[(names[slot], slot, *rest) for slot, *rest in columns],
        admitted=[
            (row.request_id, row.slot, row.num_computed_tokens, [ids.tolist() for ids in row.block_ids], row.resumed)
            for row in plan.admitted
        ],
        new_blocks=sorted(
            (slot, group, index, block)
            for group, new in enumerate(plan.new_blocks)
            for slot, index, block in zip(new.slots.tolist(), new.index.tolist(), new.block_ids.tolist(), strict=True)
        ),
        released=sorted(plan.released.tolist()),
        swap_out=pairs(plan.swap_out),
        swap_in=pairs(plan.swap_in),
        reasons={name: reason.code.value for name, reason in reasons.items()},
        preempted=[(event.request_id, event.cause, event.kind) for event in events if isinstance(event, Preempted)],
    )


def pairs(copies: Int32) -> list[tuple[int, int]]:
    """Copies as plain numbers."""
    return [(source, target) for source, target in copies.tolist()]


def run_in_lockstep(workload: Workload) -> Run:
    """Drive both to the end."""
    return drive(
        Scheduler(workload.config, workload.cache),
        workload.arrivals(),
        aborts=workload.aborts,
        late_aborts=workload.late_aborts,
        model=PrefixModel(VOCABULARY, workload.failures),
        watcher=Lockstep(workload.config, workload.cache),
    )
