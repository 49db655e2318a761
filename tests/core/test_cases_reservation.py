"""Reservations, overtaking, costs, look-ups: small scenes after docs/design/memory.md and public bug reports."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import headway.core.admission
from headway.core.plan import StepPlan
from headway.core.request import Request
from tests.core.builders import PrefixModel, make_prompt, make_request
from tests.core.scene import Scene, swap_scene

# --- reservations ---


def test_reserve_all_names_the_request_that_blocks_are_kept_for() -> None:
    """C79: 64 blocks are promised to a request that may grow to 256 tokens; the others wait for it, by name."""
    scene = Scene(num_blocks=64, max_num_seqs=6, max_model_len=256, reservation="all")
    requests = [make_request("a", 8, max_tokens=None), *(make_request(f"s{n}", 8) for n in range(5))]
    run = scene.run(requests)
    assert run.admitted_at("a") == [1]
    reason = run.reasons[0]["s0"]
    assert (reason.code.value, reason.by, reason.need, reason.free) == ("kv_short", "a", 3 + 62, 62)
    assert run.reason(1, "s1") == "queue_position"
    assert run.admitted_at("s0") == [run.token_steps["a"][-1] + 1]
    assert run.finished == {request.request_id: "length" for request in requests}


def test_reserve_all_never_preempts() -> None:
    """Whoever starts can reach its longest end."""
    scene = Scene(num_blocks=12, max_num_seqs=6, reservation="all")
    run = scene.run([make_request(f"r{number}", 3 + number % 7, max_tokens=14) for number in range(20)])
    assert not run.preemptions
    assert set(run.finished.values()) == {"length"}


def test_urgent_request_does_not_wait_for_what_is_kept_for_rows_it_displaces() -> None:
    """Reserve all: what was promised to l is free with l's blocks."""
    scene = Scene(num_blocks=10, max_num_seqs=3, reservation="all", scheduling_policy="priority")
    arrivals = {1: [make_request("l", 8, max_tokens=20, priority=5)], 3: [make_request("h", 20, max_tokens=20)]}
    run = scene.run(arrivals)
    assert run.admitted_at("h") == [3]
    assert [(event.request_id, event.by) for event in run.preemptions] == [("l", "h")]


def test_hit_on_the_host_needs_no_more_room_than_computing_it() -> None:
    """An urgent request displaces l though two of its five blocks are copied from the host."""
    scene = swap_scene(num_blocks=6, max_num_seqs=2, scheduling_policy="priority")
    prompt = make_prompt("v", 8)
    scene.run(
        {1: [make_request("v", [*prompt, 1], priority=5)], 2: [make_request("u", 23, max_tokens=1)]},
        aborts={3: ["v"]},
    )
    arrivals = {1: [make_request("l", 14, max_tokens=4, priority=5)], 2: [make_request("h", [*prompt, *range(9)])]}
    run = scene.run(arrivals)
    assert [(event.request_id, event.by) for event in run.preemptions] == [("l", "h")]
    assert next(event for event in run.admissions if event.request_id == "h").num_restored_tokens == 8


@pytest.mark.parametrize(("reservation", "preempts"), [("prompt", True), ("predicted", False)])
def test_predicted_peak_keeps_out_what_would_end_in_preemption(reservation: str, preempts: bool) -> None:
    """Outputs were 40 tokens lately: two requests peak at 104 of 120 tokens, three would at 156."""
    scene = Scene(num_blocks=30, max_num_seqs=3, max_model_len=128, reservation=reservation)
    scene.run([make_request("before", 8, max_tokens=40)])
    run = scene.run([make_request(f"r{number}", 8, max_tokens=40) for number in range(3)])
    started = [event.request_id for event in run.admissions if event.step == run.plans[0].step]
    assert started == (["r0", "r1", "r2"] if preempts else ["r0", "r1"])
    assert bool(run.preemptions) == preempts
    assert set(run.finished.values()) == {"length"}


def test_reserve_nothing_starts_a_prompt_when_its_first_chunk_fits() -> None:
    """C27 with the option turned the other way: a starts at once, and gives up at most its prompt each time."""
    scene = Scene(num_blocks=12, max_num_batched_tokens=8, reservation="nothing")
    arrivals = {
        1: [make_request(name, 13, max_tokens=3) for name in ("d1", "d2")],
        3: [make_request("a", 24)],
    }
    run = scene.run(arrivals)
    assert run.admitted_at("a")[0] < 5
    again = [event.num_recomputed_tokens for event in run.admissions if event.request_id == "a"]
    assert max(again) <= 24
    assert set(run.finished.values()) == {"length"}


# --- overtaking ---


@pytest.mark.parametrize("most", [1, 3])
def test_head_is_overtaken_so_often_and_no_more(most: int) -> None:
    """C75, bounded skipping: small requests start past a large one that waits for blocks, ``most`` of them."""
    scene = Scene(num_blocks=10, max_num_seqs=8, max_overtakes=most)
    small = [make_request(f"s{number}", 4, max_tokens=1) for number in range(8)]
    run = scene.run([make_request("a", 20), make_request("large", 24), *small])
    first = run.admitted_at("large")[0]
    before = [event.request_id for event in run.admissions if event.step < first]
    assert before == ["a", *(f"s{number}" for number in range(most))]
    # bounded: it starts once those that ran before it have ended
    assert first == run.token_steps["a"][-1] + 1
    assert set(run.finished.values()) == {"length"}


# --- what preempting costs ---


class TimedModel(PrefixModel):
    """Every token takes 10 ms."""

    def submit(self, plan: StepPlan) -> None:
        super().submit(plan)
        self.results.append(dataclasses.replace(self.results.pop(), forward_s=0.01 * plan.num_tokens))


def test_what_others_published_does_not_make_preempting_look_like_a_gain() -> None:
    """v is displaced after one block by u with the same prompt of ten, and finds all ten when it comes back."""
    scene = Scene(max_num_seqs=1, max_num_batched_tokens=4, scheduling_policy="priority")
    scene.model = TimedModel()
    predicted = []
    for number in range(4):
        prompt = make_prompt(f"p{number}", 41)
        arrivals = {1: [make_request("v", prompt, priority=5)], 2: [make_request("u", prompt)]}
        run = scene.run(arrivals)
        (event,) = run.preemptions
        assert run.admissions[-1].num_cached_tokens == 40
        predicted.append(event.predicted_recompute_s)
    # the share that survives goes up to 1, never beyond
    assert predicted == sorted(predicted, reverse=True)
    assert predicted[0] > predicted[-1] > 0


# --- looking up ---


@pytest.mark.parametrize("cached", [False, True])
def test_head_that_does_not_fit_is_not_looked_up_again_until_something_changed(
    cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """a decodes for 20 steps while the head waits for blocks: nothing changes but a's full blocks being published."""
    looked_up: list[str] = []
    look_up = headway.core.admission.look_up

    def counted(state: Any, request: Request, capped: bool) -> Any:
        looked_up.append(request.request_id)
        return look_up(state, request, capped)

    monkeypatch.setattr(headway.core.admission, "look_up", counted)
    scene = Scene(num_blocks=10, enable_prefix_caching=cached)
    run = scene.run([make_request("a", 8, max_tokens=20), make_request("head", 36)])
    waited = run.admitted_at("head")[0] - 1
    assert waited == 20
    # when it comes, after a's prompt and four more blocks were published, and when a's blocks become free
    assert looked_up.count("head") == (2 + 5 if cached else 2)
