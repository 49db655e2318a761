"""The fake executor: same tokens however a request is run, and an error for every KV block that is not a row's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from headway.config import SamplingParams
from headway.core.plan import AdmittedRow, NewBlocks, StepPlan
from headway.sim.fake import FakeExecutor, KVCorruption, PlanViolation

BLOCK = 4
PROMPT = [5, 6, 7, 8, 9, 10]


def admit(
    slot: int, tokens: Sequence[int], blocks: Sequence[int], *, handle: int = 0, computed: int = 0
) -> AdmittedRow:
    table = np.array(blocks, np.int32)
    return AdmittedRow(
        slot=slot,
        handle=handle or slot + 1,
        request_id=f"r{slot}",
        tokens=np.array(tokens, np.int32),
        num_prompt_tokens=len(tokens),
        num_computed_tokens=computed,
        block_ids=(table,),
        sampling=SamplingParams(),
        resumed=False,
    )


def plan(
    step: int,
    rows: Sequence[tuple[int, int, int, bool]],
    *,
    admitted: Sequence[AdmittedRow] = (),
    new: Sequence[tuple[int, int, int]] = (),
    released: Sequence[int] = (),
) -> StepPlan:
    """Rows are (slot, start, tokens, samples); new blocks (slot, index, block)."""
    table = np.array(rows, np.int32).reshape(-1, 4)
    added = np.array(new, np.int32).reshape(-1, 3)
    return StepPlan(
        step=step,
        slots=table[:, 0],
        starts=table[:, 1],
        num_scheduled=table[:, 2],
        samples=table[:, 3].astype(np.bool_),
        new_blocks=(NewBlocks(added[:, 0], added[:, 1], added[:, 2]),),
        admitted=tuple(admitted),
        released=np.array(released, np.int32),
    )


def run_alone(num_steps: int = 4) -> list[int]:
    fake = FakeExecutor(block_size=BLOCK, vocab_size=100)
    fake.submit(plan(1, [(0, 0, 6, True)], admitted=[admit(0, PROMPT, [1, 2, 3])]))
    for step in range(num_steps - 1):
        fake.submit(plan(step + 2, [(0, 6 + step, 1, True)]))
    return [int(fake.collect().tokens[0, 0]) for _ in range(num_steps)]


def test_tokens_do_not_depend_on_chunks_neighbours_or_resumption() -> None:
    alone = run_alone()
    fake = FakeExecutor(block_size=BLOCK, vocab_size=100)
    fake.submit(
        plan(
            1, [(3, 0, 5, True), (0, 0, 4, False)], admitted=[admit(3, [1, 2, 3, 4, 5], [7, 8]), admit(0, PROMPT, [1])]
        )
    )
    fake.submit(plan(2, [(3, 5, 1, True), (0, 4, 2, True)], new=[(0, 1, 2)]))
    first = [fake.collect() for _ in range(2)]
    assert first[0].counts.tolist() == [1, 0] and first[0].tokens[1, 0] == -1
    tokens = [int(first[1].tokens[1, 0])]
    resumed = admit(5, [*PROMPT, *tokens], [4, 5, 6], handle=2)
    fake.submit(plan(3, [(5, 0, 7, True)], admitted=[resumed], released=[0]))
    fake.submit(plan(4, [(5, 7, 1, True)]))
    tokens += [int(fake.collect().tokens[0, 0]) for _ in range(2)]
    assert tokens == alone[:3]
    assert len(set(alone)) > 1


def test_another_seed_gives_other_tokens() -> None:
    def first(seed: int) -> int:
        fake = FakeExecutor(block_size=BLOCK, seed=seed)
        fake.submit(plan(1, [(0, 0, 6, True)], admitted=[admit(0, PROMPT, [1, 2])]))
        return int(fake.collect().tokens[0, 0])

    assert first(0) == first(0) != first(1)


def test_a_shared_prefix_block_is_accepted_only_if_it_holds_that_prefix() -> None:
    def run(other: list[int]) -> None:
        fake = FakeExecutor(block_size=BLOCK)
        fake.submit(plan(1, [(0, 0, 6, True)], admitted=[admit(0, PROMPT, [1, 2])]))
        fake.collect()
        fake.submit(plan(2, [(1, 4, 2, True)], admitted=[admit(1, other, [1, 3], computed=4)]))

    run([*PROMPT[:4], 1, 2])
    with pytest.raises(KVCorruption, match="not of this row's prefix") as caught:
        run([5, 6, 7, 99, 1, 2])
    assert (caught.value.row, caught.value.slot, caught.value.position, caught.value.block) == (0, 1, 3, 1)


def test_a_block_in_two_tables_is_caught() -> None:
    fake = FakeExecutor(block_size=BLOCK)
    both = [admit(0, PROMPT, [1, 2]), admit(1, [1, 2, 3, 4, 5], [3, 2])]
    with pytest.raises(KVCorruption):
        fake.submit(plan(1, [(0, 0, 6, True), (1, 0, 5, True)], admitted=both))


def test_a_missing_or_null_block_is_caught() -> None:
    for blocks in ([1], [1, 0]):
        fake = FakeExecutor(block_size=BLOCK)
        with pytest.raises(KVCorruption, match="no block to write") as caught:
            fake.submit(plan(1, [(0, 0, 6, True)], admitted=[admit(0, PROMPT, blocks)]))
        assert caught.value.position == 4


def test_a_block_may_change_hands_only_when_its_last_step_came_back() -> None:
    def run(collect_first: bool) -> None:
        fake = FakeExecutor(block_size=BLOCK)
        fake.submit(plan(1, [(0, 0, 6, True)], admitted=[admit(0, PROMPT, [1, 2])]))
        if collect_first:
            fake.collect()
        fake.submit(plan(2, [(1, 0, 2, True)], admitted=[admit(1, [1, 2], [2])], released=[0]))

    run(collect_first=True)
    with pytest.raises(KVCorruption, match="in flight"):
        run(collect_first=False)


def test_unwritten_kv_is_caught() -> None:
    fake = FakeExecutor(block_size=BLOCK)
    with pytest.raises(KVCorruption) as caught:
        fake.submit(plan(1, [(0, 4, 2, True)], admitted=[admit(0, PROMPT, [1, 2], computed=4)]))
    assert caught.value.position == 0


def test_groups_keep_apart() -> None:
    fake = FakeExecutor(block_size=BLOCK)
    row = admit(0, [1, 2], [1])
    row = AdmittedRow(**{**row.__dict__, "block_ids": (row.block_ids[0], row.block_ids[0])})
    one = plan(1, [(0, 0, 2, True)], admitted=[row])
    with pytest.raises(KVCorruption) as caught:
        fake.submit(StepPlan(**{**one.__dict__, "new_blocks": one.new_blocks * 2}))
    assert caught.value.group == 0


def test_a_failed_row_stays_failed_until_its_slot_is_admitted_again() -> None:
    fake = FakeExecutor(block_size=BLOCK, fail=lambda p: {0: "boom"} if p.step == 1 else {})
    both = [admit(0, PROMPT, [1, 2]), admit(1, [1, 2], [3])]
    fake.submit(plan(1, [(0, 0, 6, True), (1, 0, 2, True)], admitted=both))
    fake.submit(plan(2, [(0, 6, 1, True), (1, 2, 1, True)]))
    first, second = fake.collect(), fake.collect()
    assert first.failed == {0: "boom"} and first.counts.tolist() == [0, 1]
    assert list(second.failed) == [0] and second.counts.tolist() == [0, 1]
    fake.submit(plan(3, [(0, 0, 2, True)], admitted=[admit(0, [1, 2], [1], handle=9)], released=[0]))
    assert not fake.collect().failed


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (lambda: plan(1, []), "no rows"),
        (lambda: plan(1, [(0, 0, 1, True)]), "empty slot"),
        (lambda: plan(1, [(0, 0, 7, True)], admitted=[admit(0, PROMPT, [1, 2])]), "known tokens"),
        (lambda: plan(1, [(0, 0, 6, False)], admitted=[admit(0, PROMPT, [1, 2])]), "must sample"),
        (lambda: plan(1, [(0, 0, 3, False)] * 2, admitted=[admit(0, PROMPT, [1, 2])]), "twice"),
        (lambda: plan(1, [(0, 0, 0, False)], admitted=[admit(0, PROMPT, [1, 2])]), "without tokens"),
        (lambda: plan(1, [(0, 0, 6, True)], admitted=[admit(0, PROMPT, [1, 2])] * 2), "is taken"),
        (lambda: plan(1, [(0, 0, 6, True)], admitted=[admit(0, PROMPT, [1, 2])], released=[0]), "is empty"),
        (lambda: plan(1, [(0, 0, 6, True)], admitted=[admit(0, PROMPT, [1, 2])], new=[(0, 1, 3)]), "replaces"),
    ],
)
def test_malformed_plans_are_refused(bad, why) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PlanViolation, match=why):
        FakeExecutor(block_size=BLOCK).submit(bad())


def test_collect_needs_a_plan_and_takes_its_time() -> None:
    waits: list[float] = []
    fake = FakeExecutor(block_size=BLOCK, delay_s=0.5, sleep=waits.append)
    with pytest.raises(PlanViolation):
        fake.collect()
    fake.submit(plan(1, [(0, 0, 6, True)], admitted=[admit(0, PROMPT, [1, 2])]))
    assert fake.num_in_flight == 1 and waits == []
    assert fake.collect().step == 1
    assert fake.num_in_flight == 0 and waits == [0.5]
