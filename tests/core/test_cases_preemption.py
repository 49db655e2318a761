"""Preemption, priorities and steps in flight: small scenes after public bug reports of other engines."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headway.core.events import Preempted
from headway.sim.fake import FakeExecutor
from tests.core.builders import Run, expected_output, make_prompt, make_request
from tests.core.scene import Scene


def tokens_between_preemptions(run: Run, name: str) -> list[int]:
    """Tokens delivered between each preemption of a request and its next one."""
    steps = [event.step for event in run.preemptions if event.request_id == name]
    delivered = run.token_steps.get(name, [])
    return [sum(first < step < second for step in delivered) for first, second in pairwise(steps)]


# --- steps in flight ---


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_preemption_with_steps_in_flight_loses_and_repeats_no_token(depth: int) -> None:
    """C19, C108: two requests need 6 blocks each, there are 6; the run with 100 blocks says what is right."""
    requests = {name: 8 for name in ("a", "b")}
    scene = Scene(num_blocks=6)
    scene.model = FakeExecutor(block_size=4)  # type: ignore[assignment]
    roomy = Scene(num_blocks=100)
    roomy.model = FakeExecutor(block_size=4)  # type: ignore[assignment]
    runs = [
        one.run([make_request(name, prompt, max_tokens=16) for name, prompt in requests.items()], depth=depth)
        for one in (scene, roomy)
    ]
    assert [event.request_id for event in runs[0].preemptions] == ["b"]
    assert not runs[1].preemptions
    assert runs[0].outputs == runs[1].outputs
    resumed = next(row for plan in runs[0].plans for row in plan.admitted if row.resumed)
    delivered = sum(step < resumed_step(runs[0]) for step in runs[0].token_steps["b"])
    assert len(resumed.tokens) == 8 + delivered


def resumed_step(run: Run) -> int:
    """The step in which somebody came back."""
    return next(plan.step for plan in run.plans for row in plan.admitted if row.resumed)


def test_blocks_of_an_ended_request_wait_for_its_step_in_flight() -> None:
    """C36: step 3's output ends r while step 4 is in flight; q needs r's blocks and starts only after step 4."""
    third = expected_output(make_prompt("r", 8), 3)[2]
    scene = Scene(num_blocks=4)
    arrivals = {1: [make_request("r", 8, max_tokens=20, stop_token_ids=(third,))], 2: [make_request("q", 12)]}
    run = scene.run(arrivals, depth=2)
    assert run.finished == {"r": "stop", "q": "length"}
    assert list(run.scheduled["r"]) == [1, 2, 3, 4]
    # When step 5 is made, step 3 has returned and step 4 has not.
    assert run.reason(5, "q") == "kv_short"
    assert run.admitted_at("q") == [6]


def test_nothing_is_delivered_after_an_abort_and_blocks_come_back() -> None:
    """C104: three prompts of 20 in one batch; the third is aborted after its last chunk was dispatched."""

    def run_it(late_aborts: dict[int, list[str]]) -> tuple[Scene, Run]:
        scene = Scene(max_num_batched_tokens=8)
        requests = [make_request(name, 20) for name in ("a", "b", "c")]
        return scene, scene.run(requests, depth=2, late_aborts=late_aborts)

    _, undisturbed = run_it({})
    computed, last_chunk = 0, 0
    for step, tokens in undisturbed.scheduled["c"].items():
        computed += tokens
        if computed == 20:
            last_chunk = step
    assert undisturbed.token_steps["c"][0] == last_chunk
    scene, run = run_it({last_chunk: ["c"]})
    assert run.finished["c"] == "abort"
    assert run.outputs["c"] == []
    assert all(run.outputs[name] == undisturbed.outputs[name] for name in ("a", "b"))
    assert scene.num_free == 100


def test_cancelled_long_prompts_hold_up_nobody() -> None:
    """C106: one slot, ten long prompts, all aborted; the short request behind them starts in the next step."""
    scene = Scene(max_num_seqs=1, max_model_len=256, num_blocks=200)
    names = [f"long{number}" for number in range(10)]
    arrivals = {1: [make_request(name, 200) for name in names], 2: [make_request("s", 8)]}
    run = scene.run(arrivals, aborts={2: names})
    assert run.admitted_at("s") == [2]
    assert run.token_steps["s"] == [2, 3, 4, 5]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_abort_may_come_twice_late_or_for_unknown_ids(depth: int) -> None:
    """cases.md section 8, rule 7."""
    scene = Scene()
    requests = [make_request("a", max_tokens=9), make_request("b")]
    run = scene.run(requests, depth=depth, late_aborts={2: ["a", "a", "nobody"]}, aborts={3: ["a"], 9: ["b"]})
    assert run.finished == {"a": "abort", "b": "length"}
    assert scene.scheduler.abort(requests[1].handle, now=99.0) is False


# --- who gives way ---


def test_resumed_request_delivers_a_token_before_it_gives_way_again() -> None:
    """C20, second clause: four requests share room for two; nobody is preempted twice in vain."""
    scene = Scene(num_blocks=9, block_size=2, max_num_seqs=4, enable_prefix_caching=False)
    run = scene.run([make_request(f"r{number}", 3, max_tokens=12) for number in range(4)])
    twice = [name for name in run.outputs if len(tokens_between_preemptions(run, name)) > 0]
    assert twice, "nobody was preempted twice: the scene shows nothing"
    assert all(min(tokens_between_preemptions(run, name)) >= 1 for name in twice)
    assert set(run.finished.values()) == {"length"}


def test_victim_without_tokens_in_the_step_costs_the_others_none() -> None:
    """C23: x has the last place and is held back by the cadence; a needs a block; a, b and c all get their token."""
    scene = Scene(num_blocks=7, max_num_batched_tokens=20, scheduling_policy="priority", prefill_schedule_interval=4)
    prompts = {"a": (4, 0), "b": (5, 1), "c": (6, 2), "x": (8, 9)}
    run = scene.run([make_request(name, prompt, priority=p) for name, (prompt, p) in prompts.items()])
    assert run.scheduled["x"][1] == 5
    victims = [(event.step, event.request_id, event.by) for event in run.preemptions]
    assert victims == [(2, "x", "a")]
    assert [2 in run.scheduled[name] for name in prompts] == [True, True, True, False]
    assert set(run.finished.values()) == {"length"}


def test_preempted_request_keeps_its_place_between_earlier_and_later_ones() -> None:
    """C25: r2 is preempted while r3 and r4 wait; it comes back before both, and r1 before it."""
    scene = Scene(num_blocks=6, max_num_seqs=3)
    run = scene.run([make_request(f"r{number}", 8, max_tokens=16) for number in range(5)])
    assert [event.request_id for event in run.preemptions][:2] == ["r2", "r1"]
    assert [event.request_id for event in run.admissions][:6] == ["r0", "r1", "r2", "r1", "r2", "r3"]


@pytest.mark.parametrize("depth", [1, 2])
def test_urgent_request_displaces_one_row_and_equals_displace_nobody(depth: int) -> None:
    """C26: two slots full of unimportant work. With steps in flight rows cannot be taken off at once."""
    scene = Scene(max_num_seqs=2, max_model_len=128, scheduling_policy="priority")
    arrivals = {
        1: [make_request(name, 4, max_tokens=100, priority=5) for name in ("l1", "l2")],
        4: [make_request("h", 4, max_tokens=4)],
        5: [make_request("e", 4, max_tokens=4, priority=5)],
    }
    run = scene.run(arrivals, depth=depth)
    if depth == 1:
        assert run.admitted_at("h") == [4]
    displaced = [(event.request_id, event.by, event.cause) for event in run.preemptions]
    assert displaced == [("l2", "h", "displaced")]
    # l2 was there before e and comes back before it; after that nobody swaps places.
    assert [event.request_id for event in run.admissions] == ["l1", "l2", "h", "l2", "e"]
    assert run.outputs["l2"] == expected_output(make_prompt("l2", 4), 100)


def test_urgent_request_displaces_nobody_if_it_would_not_fit_even_so() -> None:
    """C26: "only if it passes all other checks": h needs 8 blocks, the unimportant row would give back 2 of 4."""
    scene = Scene(num_blocks=10, max_num_seqs=3, scheduling_policy="priority")
    arrivals = {
        1: [make_request("m", 16, max_tokens=3, priority=0), make_request("l", 8, max_tokens=9, priority=5)],
        2: [make_request("h", 31, max_tokens=1, priority=1)],
    }
    run = scene.run(arrivals)
    assert run.reason(2, "h") == "kv_short"
    assert [(event.step, event.request_id, event.by) for event in run.preemptions] == [(4, "l", "h")]
    assert run.admitted_at("h") == [4]


def test_what_a_displaced_row_set_free_is_not_for_those_behind_it() -> None:
    """P4: h takes the slot of v and some of its blocks; w behind v may not take the rest, v comes back first."""
    scene = Scene(num_blocks=8, max_num_seqs=3, scheduling_policy="priority")
    arrivals = {
        1: [make_request("v", 28, max_tokens=2, priority=5)],
        2: [make_request("w", 8, priority=5), make_request("h", 8)],
    }
    run = scene.run(arrivals)
    assert [(event.request_id, event.by) for event in run.preemptions] == [("v", "h")]
    assert run.reason(2, "v") == "preempted"
    assert run.reason(2, "w") == "queue_position"
    assert [event.request_id for event in run.admissions] == ["v", "h", "v", "w"]


def test_long_prompt_starts_once_it_can_be_held_wholly() -> None:
    """C27: two decoders hold 4 of 12 blocks each; 24 tokens need 6. No start, preemption and start over."""
    scene = Scene(num_blocks=12, max_num_batched_tokens=8)
    arrivals = {
        1: [make_request(name, 13, max_tokens=3) for name in ("d1", "d2")],
        3: [make_request("a", 24)],
    }
    run = scene.run(arrivals)
    assert run.reason(4, "a") == "kv_short"
    assert run.reasons[3]["a"].need == 6
    assert len(run.admitted_at("a")) == 1
    assert run.preemptions == []
    assert sum(run.scheduled["a"].values()) == 24 + 3


def test_more_than_one_victim_leaves_from_the_tail() -> None:
    """step.md 3: victims go tail first, as many as needed; the urgent row's growth is served in the same step."""
    scene = Scene(num_blocks=6, num_groups=3, max_num_seqs=3, scheduling_policy="priority", max_model_len=16)
    arrivals = {1: [make_request(name, 3, max_tokens=4, priority=p) for name, p in (("a", 0), ("b", 1))]}
    run = scene.run(arrivals)
    first = run.preemptions[0]
    assert isinstance(first, Preempted)
    assert (first.request_id, first.by, first.cause, first.num_lost_tokens) == ("b", "a", "blocks", 4)
    assert first.step in run.scheduled["a"]
    assert run.finished == {"a": "length", "b": "length"}
