"""Fairness and load: small scenes after public bug reports of other engines."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headway.core.reasons import ReasonCode
from tests.core.builders import make_request
from tests.core.scene import Scene


def test_decoders_get_a_token_every_step_while_prompts_keep_coming_and_move() -> None:
    """C74: eight tokens a step, four decoders, a prompt of 16 in every step from the fifth on."""
    scene = Scene(max_num_seqs=8, max_num_batched_tokens=8)
    arrivals = {1: [make_request(f"d{number}", 2, max_tokens=40) for number in range(4)]}
    arrivals |= {step: [make_request(f"p{step}", 16, max_tokens=1)] for step in range(5, 35)}
    run = scene.run(arrivals)
    for number in range(4):
        steps = run.token_steps[f"d{number}"]
        assert steps == list(range(steps[0], steps[0] + 40))
    # Four tokens are left for prompts, so one of them is done every four steps while the decoders run.
    done = sorted(run.token_steps[f"p{step}"][0] for step in range(5, 35))
    assert [step for step in done if step <= 40] == list(range(8, 41, 4))
    assert len(run.finished) == 34


def test_row_that_cannot_grow_costs_the_rows_after_it_nothing() -> None:
    """C75: a needs a block, none is free and nobody can give one, for all have a step in flight; b and c go on."""
    scene = Scene(num_blocks=5)
    run = scene.run([make_request(name, size) for name, size in (("a", 4), ("b", 5), ("c", 6))], depth=2)
    assert run.reason(2, "a") == "kv_short"
    assert 2 in run.scheduled["b"]
    assert 2 in run.scheduled["c"]
    assert set(run.finished.values()) == {"length"}


def test_queue_is_strictly_first_come_first_served_when_blocks_are_short() -> None:
    """C75, the waiting queue: a small request does not pass a large one that waits for blocks, and says why."""
    scene = Scene(num_blocks=10)
    requests = [make_request(name, size) for name, size in (("a", 20), ("large", 24), ("small", 4))]
    run = scene.run(requests)
    assert run.reason(1, "large") == "kv_short"
    assert (run.reason(1, "small"), run.reasons[0]["small"].need) == ("queue_position", 1)
    assert run.admitted_at("small") == run.admitted_at("large")


def test_partial_prefill_cap_lets_short_prompts_past_a_long_one() -> None:
    """C76: a prompt of 200 at 16 tokens a step, then ten of 8. With the cap they share the step with it."""
    shorts = [f"s{number}" for number in range(10)]

    def first_tokens(threshold: int) -> tuple[list[int], dict[int, int], list[str]]:
        scene = Scene(
            max_num_seqs=12,
            max_num_batched_tokens=16,
            max_model_len=256,
            long_prefill_token_threshold=threshold,
        )
        arrivals = {1: [make_request("long", 200)], 3: [make_request(name, 8, max_tokens=2) for name in shorts]}
        run = scene.run(arrivals)
        reasons = [run.reason(3, name) for name in shorts]
        return [run.token_steps[name][0] for name in shorts], run.scheduled["long"], reasons

    capped, long_rate, _ = first_tokens(8)
    # A decode of one short request and up to 8 tokens of the next ones fit beside the long one's share.
    assert max(capped) <= 3 + 12
    assert min(long_rate[step] for step in range(3, 16)) >= 7
    uncapped, _, reasons = first_tokens(0)
    assert min(uncapped) >= 200 // 16
    assert reasons == ["budget_spent"] + ["queue_position"] * 9


def test_long_prompts_share_half_of_what_decodes_leave_and_wait_with_that_reason() -> None:
    """step.md 2: two long prompts get one share of 8; the second waits while the first takes all of it."""
    scene = Scene(max_num_batched_tokens=16, long_prefill_token_threshold=8)
    run = scene.run([make_request("one", 40), make_request("two", 40), make_request("short", 4)])
    assert run.plans[0].num_scheduled.tolist() == [8, 4]
    assert run.reason(1, "two") == "long_prefill_cap"
    assert run.admitted_at("short") == [1]
    assert set(run.finished.values()) == {"length"}


def test_long_row_says_so_even_if_short_ones_after_it_use_up_the_budget() -> None:
    """step.md 2: the reason is what stood in the way at its turn. In step 2 one gets 6 of 12, two 0, short the rest."""
    scene = Scene(max_num_seqs=12, max_num_batched_tokens=20, long_prefill_token_threshold=8)
    decoders = [make_request(f"d{number}", 1) for number in range(8)]
    run = scene.run([make_request("one", 40), make_request("two", 40), *decoders, make_request("short", 8)])
    assert [run.scheduled[name].get(2, 0) for name in ("one", "two", "d0", "short")] == [6, 0, 1, 6]
    assert run.reason(2, "two") == "long_prefill_cap"


def test_row_without_tokens_keeps_its_reason_when_others_give_theirs_up() -> None:
    """step.md 4.6: h takes over l1's share; l2 behind it had none before and goes on waiting for the cap."""
    scene = Scene(max_num_batched_tokens=4, long_prefill_token_threshold=3, scheduling_policy="priority")
    arrivals = {
        step: [make_request(name, 20, priority=p)] for step, name, p in ((1, "l2", 2), (2, "l1", 1), (4, "h", 0))
    }
    run = scene.run(arrivals)
    assert [run.scheduled[name].get(4, 0) for name in ("l2", "l1", "h")] == [0, 0, 2]
    assert (run.reason(3, "l2"), run.reason(3, "l1")) == ("long_prefill_cap", "")
    assert (run.reason(4, "l2"), run.reason(4, "l1")) == ("long_prefill_cap", "budget_spent")


@pytest.mark.parametrize("interval", [1, 2, 4])
def test_prefill_cadence_spaces_steps_with_prompts(interval: int) -> None:
    """C77: an accepted option has its effect: while somebody decodes, one step in ``interval`` carries prompts."""
    scene = Scene(max_num_batched_tokens=8, prefill_schedule_interval=interval)
    run = scene.run({1: [make_request("d", 4, max_tokens=30)], 2: [make_request("p", 40, max_tokens=1)]})
    steps = list(run.scheduled["p"])
    assert len(steps) == 6
    assert {second - first for first, second in pairwise(steps)} == {interval}
    held = [run.reason(step, "p") for step in range(steps[0] + 1, steps[1])]
    assert held == ["prefill_cadence"] * (interval - 1)


def test_cadence_never_holds_prompts_back_for_decodes_that_cannot_run() -> None:
    """A held step that serves nobody lets the next one carry prompts: d needs a block that resumed p holds."""
    stalls = 0
    for num_blocks in range(5, 9):
        scene = Scene(
            num_blocks=num_blocks,
            block_size=2,
            max_num_batched_tokens=3,
            max_num_seqs=2,
            prefill_schedule_interval=4,
            enable_prefix_caching=False,
        )
        run = scene.run([make_request("d", 3, max_tokens=9), make_request("p", 3, max_tokens=9)])
        stalls += sum(plan.num_rows == 0 for plan in run.plans)
        assert len(run.finished) == 2
    assert stalls, "no step was without rows: the scene shows nothing"


def test_request_that_might_run_long_does_not_reserve_the_pool() -> None:
    """C79, optimistic mode: one request without a limit and five short ones all start in the first step."""
    scene = Scene(num_blocks=64, max_num_seqs=6)
    requests = [make_request("a", 8, max_tokens=None), *(make_request(f"s{n}", 8) for n in range(5))]
    run = scene.run(requests)
    assert [event.step for event in run.admissions] == [1] * 6
    assert all(run.token_steps[f"s{n}"][-1] == 4 for n in range(5))


def test_urgent_prompt_takes_tokens_back_from_less_urgent_chunks() -> None:
    """step.md 4.6: the less urgent chunk gives up what the urgent one wants, and no blocks."""
    scene = Scene(max_num_batched_tokens=8, scheduling_policy="priority")
    run = scene.run({1: [make_request("l", 40, priority=5)], 2: [make_request("h", 6)]})
    assert (run.scheduled["l"][2], run.scheduled["h"][2]) == (2, 6)
    run = scene.run({1: [make_request("l2", 40, priority=5)], 2: [make_request("h2", 12)]})
    first = run.plans[0].step
    assert run.scheduled["h2"][first + 1] == 8
    assert run.reason(2, "l2") == ReasonCode.BUDGET_SPENT.value


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_every_request_of_a_crowd_ends(depth: int) -> None:
    """P3 and P4 at work: forty requests, room for a few, all finish in order of arrival but for their lengths."""
    scene = Scene(num_blocks=16, max_num_batched_tokens=16)
    run = scene.run(
        {
            1 + number // 3: [make_request(f"r{number}", 3 + number % 14, max_tokens=1 + number % 9)]
            for number in range(40)
        },
        depth=depth,
    )
    assert len(run.finished) == len(run.outputs)
    assert set(run.finished.values()) == {"length"}
    starts = [event.request_id for event in run.admissions if not event.resumed]
    assert starts == list(run.outputs)
