"""An inspection shows every request, reason and block, and does not change when the scheduler goes on."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from headway.config import CacheConfig, SamplingParams, SchedulerConfig
from headway.core.inspection import CACHED, DRAINING, FREE, SHARED
from headway.core.reasons import ReasonCode
from headway.core.request import Request, Status
from headway.core.scheduler import Scheduler
from headway.sim.fake import FakeExecutor


class Run:
    """A small scheduler with an executor; overrides are options of it."""

    def __init__(self, **overrides: int) -> None:
        cache = {"block_size": 4, "num_blocks": 20, "num_groups": 1, "num_host_blocks": 0}
        limits = {"max_num_seqs": 3, "max_num_batched_tokens": 32, "max_model_len": 64}
        for name, value in overrides.items():
            (cache if name in cache else limits)[name] = value
        self.scheduler = Scheduler(SchedulerConfig(**limits), CacheConfig(**cache))
        self.executor = FakeExecutor(block_size=4)

    def add(self, name: str, prompt: list[int], max_tokens: int = 8) -> None:
        self.scheduler.add(Request(name, prompt, SamplingParams(max_tokens=max_tokens)), 0.0)

    def step(self) -> None:
        plan = self.scheduler.schedule(0.0)
        if plan.num_rows:
            self.executor.submit(plan)
            self.scheduler.update(plan, self.executor.collect(), 0.0)


def counted(owners: np.ndarray) -> dict[int, int]:
    values, counts = np.unique(owners, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def test_rows_and_waiting_requests() -> None:
    run = Run(max_num_seqs=1)
    run.add("a", [1] * 9)
    run.add("b", [2] * 5)
    run.add("c", [3] * 6)
    run.step()
    run.step()

    seen = run.scheduler.inspect()

    rows = seen.rows
    assert (rows.request_ids, rows.slots.tolist(), rows.handles.tolist()) == (("a",), [0], [1])
    assert (rows.num_prompt_tokens[0], rows.known[0], rows.computed[0], rows.held[0], rows.end_len[0]) == (
        9,
        11,
        10,
        3,
        17,
    )
    assert [(waiter.request_id, waiter.status, len(waiter.tokens)) for waiter in seen.waiting] == [
        ("b", Status.WAITING, 5),
        ("c", Status.WAITING, 6),
    ]
    assert seen.reason_of_row(0) is None
    reasons = [seen.reason_of_waiter(place) for place in range(2)]
    assert reasons == [run.scheduler.wait_reason("b"), run.scheduler.wait_reason("c")]
    assert [reason.code for reason in reasons] == [ReasonCode.SLOTS_FULL, ReasonCode.QUEUE_POSITION]
    assert {code: count for code, count in seen.waiting_counts().items() if count} == {
        ReasonCode.SLOTS_FULL: 1,
        ReasonCode.QUEUE_POSITION: 1,
    }


@pytest.mark.parametrize("num_groups", [1, 2])
def test_every_block_has_an_owner(num_groups: int) -> None:
    run = Run(num_groups=num_groups, num_blocks=20 * num_groups)
    run.add("a", list(range(9)))
    run.step()
    run.add("b", list(range(9)), max_tokens=1)
    run.add("c", [7] * 5, max_tokens=1)
    run.step()
    run.add("d", [*range(8), 50, 51])
    run.step()

    seen = run.scheduler.inspect()

    shared = 2 * num_groups  # the first two blocks of "a" are those of "d"
    assert counted(seen.pool.owners) == {
        SHARED: shared,
        0: num_groups,
        1: num_groups,
        CACHED: num_groups,  # "c" left one full block
        FREE: 20 * num_groups - shared - 3 * num_groups,
    }
    assert (seen.pool.num_free, seen.pool.num_free_cached) == (16 * num_groups, num_groups)
    assert seen.pool.prefix.first.hit_tokens == 16


def test_blocks_of_an_aborted_request_drain_until_its_step_returns() -> None:
    run = Run()
    run.add("a", [1] * 6)
    plan = run.scheduler.schedule(0.0)
    run.executor.submit(plan)
    run.scheduler.abort(1, 0.0)

    draining = run.scheduler.inspect()
    run.scheduler.update(plan, run.executor.collect(), 0.0)

    assert (draining.num_draining, counted(draining.pool.owners)) == (1, {DRAINING: 2, FREE: 18})
    assert counted(run.scheduler.inspect().pool.owners) == {FREE: 20}


def test_it_stays_as_it_is() -> None:
    run = Run(num_blocks=9)
    for name in "abcd":
        run.add(name, [ord(name)] * 9, max_tokens=20)
    run.step()
    seen = run.scheduler.inspect()
    before = copy.deepcopy(seen)

    for _ in range(30):
        run.step()

    assert all(np.array_equal(getattr(seen.rows, name), value) for name, value in vars(before.rows).items())
    assert np.array_equal(seen.pool.owners, before.pool.owners)
    assert [(waiter[:5], waiter[6:]) for waiter in seen.waiting] == [(one[:5], one[6:]) for one in before.waiting]
    assert (seen._own, seen.pool.stats) == (before._own, before.pool.stats)


def test_counts_agree_with_the_reasons_of_all_requests() -> None:
    run = Run(num_blocks=9, num_host_blocks=20)
    for number in range(8):
        run.add(f"r{number}", [number] * 9, max_tokens=20)
    for _ in range(60):
        run.step()
        counts = dict.fromkeys(ReasonCode, 0)
        for reason in run.scheduler.wait_reasons().values():
            counts[reason.code] += 1
        seen = run.scheduler.inspect()
        waiting, rows = seen.waiting_counts(), seen.row_counts()
        assert {code: waiting[code] + rows[code] for code in ReasonCode} == counts
        assert sum(waiting.values()) == run.scheduler.num_waiting
