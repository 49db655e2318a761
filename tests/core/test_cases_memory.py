"""Swapping: small scenes after docs/design/memory.md and public bug reports, by their numbers in our list."""

from __future__ import annotations

import pytest

from headway.core.plan import StepPlan
from tests.core.builders import Run, expected_output, make_prompt, make_request
from tests.core.scene import Scene, num_held_on_host, swap_scene, swaps


def same_outputs_as_alone(run: Run, requests: dict[str, int]) -> bool:
    """Whether every request got the tokens that it gets without any pressure."""
    scene = swap_scene(num_blocks=2000, max_num_seqs=len(requests), max_num_batched_tokens=1000)
    lengths = {name: len(tokens) for name, tokens in run.outputs.items()}
    roomy = scene.run([make_request(name, size, max_tokens=lengths[name]) for name, size in requests.items()])
    assert not roomy.preemptions
    return roomy.outputs == run.outputs


# --- out and back ---


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_swapped_request_goes_on_without_computing_anything_again(depth: int, groups: int) -> None:
    """The partly filled last block comes back too: b is swapped with 14 tokens in blocks of 4."""
    scene = swap_scene(num_blocks=7 * groups, num_groups=groups)
    requests = {"a": 8, "b": 10}
    run = scene.run([make_request(name, size, max_tokens=16) for name, size in requests.items()], depth=depth)
    (out,), (back,) = swaps(run), [event for event in run.admissions if event.resumed]
    assert out.request_id == back.request_id == "b"
    computed = sum(tokens for step, tokens in run.scheduled["b"].items() if step < out.step)
    assert computed == 14 or depth > 1
    assert back.num_cached_tokens + back.num_restored_tokens == computed
    assert out.num_copied_blocks == 4 * groups
    assert (out.num_lost_tokens, back.num_recomputed_tokens) == (0, 0)
    assert run.num_computed_tokens == 18 + 2 * (16 - 1)
    assert same_outputs_as_alone(run, requests)
    assert num_held_on_host(scene) == 0


def test_blocks_still_cached_on_the_device_are_not_copied_back() -> None:
    """Only what others needed in the meantime comes from the host."""
    scene = swap_scene(num_blocks=8, max_num_seqs=1, scheduling_policy="priority")
    arrivals = {1: [make_request("v", 17, max_tokens=3, priority=5)], 2: [make_request("h", 16, max_tokens=1)]}
    run = scene.run(arrivals)
    (out,), (_, _, back) = swaps(run), run.admissions
    # v's 5 blocks were copied out; h took the 4 free ones, the partly filled last one of v among them
    assert (out.request_id, out.num_copied_blocks) == ("v", 5)
    assert (back.num_cached_tokens, back.num_restored_tokens) == (16, 1)
    assert [len(plan.swap_in) for plan in run.plans if len(plan.swap_in)] == [1]


def test_content_that_is_on_the_host_already_is_not_copied_twice() -> None:
    """v is swapped, comes back, and is swapped again: the full blocks are still there."""
    scene = swap_scene(num_blocks=8, max_num_seqs=1, scheduling_policy="priority")
    arrivals = {
        1: [make_request("v", 17, max_tokens=9, priority=5)],
        2: [make_request("h", 16, max_tokens=1)],
        5: [make_request("i", 16, max_tokens=1)],
    }
    run = scene.run(arrivals)
    assert [(event.request_id, event.num_copied_blocks) for event in swaps(run)] == [("v", 5), ("v", 1)]
    assert run.outputs["v"] == scene_outputs("v", 17, 9)


def scene_outputs(name: str, prompt: int, outputs: int) -> list[int]:
    """What the fake executor's model says after a prompt."""
    return swap_scene().run([make_request(name, prompt, max_tokens=outputs)]).outputs[name]


def test_new_request_continues_its_hit_on_the_host() -> None:
    """Host blocks of swapped requests are a second level of the prefix cache, counted apart."""
    scene = swap_scene(num_blocks=8, max_num_seqs=1, scheduling_policy="priority")
    prompt = make_prompt("v", 17)
    arrivals = {
        1: [make_request("v", prompt, max_tokens=9, priority=5)],
        2: [make_request("h", 28, max_tokens=1)],
    }
    scene.run(arrivals, aborts={3: ["v"]})
    assert num_held_on_host(scene) == 0
    run = scene.run([make_request("w", prompt, max_tokens=9)])
    # the 28 tokens of h took 7 of the 8 blocks, v's first one was spared: it was freed last
    (start,) = run.admissions
    assert (start.num_cached_tokens, start.num_restored_tokens) == (4, 12)
    first = scene.scheduler.kv.stats.first
    assert (first.hit_tokens, first.host_tokens) == (4, 12)
    assert run.outputs["w"] == scene_outputs("v", 17, 9)


def test_swapped_request_does_not_wait_for_what_others_compute() -> None:
    """It goes on from where it was, so the block that o is about to publish would not help r."""
    scene = swap_scene(
        num_blocks=60,
        max_num_seqs=2,
        max_num_batched_tokens=16,
        long_prefill_token_threshold=2,
        scheduling_policy="priority",
    )
    shared = make_prompt("shared", 40)
    arrivals = {
        1: [make_request("r", shared, priority=5)],
        2: [make_request(name, 2, max_tokens=1) for name in ("h", "i")],
        3: [make_request("o", shared, priority=4)],
    }
    run = scene.run(arrivals)
    assert [event.request_id for event in swaps(run)] == ["r"]
    assert run.scheduled["o"][3] == run.scheduled["r"][3] == 2
    assert run.outputs["r"] == run.outputs["o"]


def test_swapped_request_takes_a_token_back_from_a_prompt_of_its_class() -> None:
    """l would take all 8 tokens of step 8; r, which l's growth swapped out, goes on with one of them."""
    scene = swap_scene(num_blocks=12, max_num_batched_tokens=8, scheduling_policy="deadline", reservation="nothing")
    arrivals = {
        1: [make_request("d", 24, max_tokens=5, deadline_s=1.0), make_request("r", 8, max_tokens=9)],
        6: [make_request("l", 40, deadline_s=9.0)],
    }
    run = scene.run(arrivals)
    first = swaps(run)[0]
    assert (first.request_id, first.by, first.step) == ("r", "l", 7)
    assert (run.scheduled["l"][8], run.scheduled["r"][8]) == (7, 1)


def test_full_host_tier_means_recompute_and_never_an_error() -> None:
    """Two host blocks hold neither of the victims."""
    scene = swap_scene(num_blocks=9, max_num_seqs=3, num_host_blocks=2)
    requests = {f"r{number}": 8 for number in range(4)}
    run = scene.run([make_request(name, size, max_tokens=16) for name, size in requests.items()])
    assert {event.kind for event in run.preemptions} == {"recompute"}
    assert set(run.finished.values()) == {"length"}
    assert same_outputs_as_alone(run, requests)


# --- cases of public bug reports ---


@pytest.mark.parametrize(("host", "kinds"), [(8, {"swap"}), (3, {"swap", "recompute"})])
def test_swapped_requests_come_back_while_new_ones_keep_coming(host: int, kinds: set[str]) -> None:
    """C15: three requests that outgrow the pool, then a small one every step for 100 steps; the host may fill up."""
    scene = swap_scene(num_blocks=8, num_host_blocks=host)
    big = {name: 12 for name in ("a", "b", "c")}
    arrivals = {1: [make_request(name, 12, max_tokens=20) for name in big]}
    arrivals |= {step: [make_request(f"x{step}", 4)] for step in range(5, 105)}
    run = scene.run(arrivals)
    assert {event.kind for event in run.preemptions} == kinds
    assert len(run.finished) == 103
    assert set(run.finished.values()) == {"length"}
    for event in swaps(run):
        back = min(step for step in run.admitted_at(event.request_id) if step > event.step)
        started = [e.request_id for e in run.admissions if event.step < e.step < back and not e.resumed]
        assert not started, f"{started} started while {event.request_id} was swapped"
    assert same_outputs_as_alone(run, big | {f"x{step}": 4 for step in range(5, 105)})


def test_abort_of_a_swapped_request_frees_its_host_blocks_every_time() -> None:
    """C31: a thousand times."""
    scene = swap_scene(num_blocks=6, num_host_blocks=4, max_num_seqs=1, scheduling_policy="priority")
    scheduler, executor = scene.scheduler, scene.model

    def step() -> StepPlan:
        plan = scheduler.schedule(0.0)
        executor.submit(plan)
        scheduler.update(plan, executor.collect(), 0.0)
        return plan

    for number in range(1000):
        request = make_request("a", [number, 1, 2, 3, 4, 5], max_tokens=9, priority=5)
        scheduler.add(request, 0.0)
        step()
        scheduler.add(make_request("h", [7], max_tokens=1), 0.0)
        step()
        assert (num_held_on_host(scene), scheduler.num_swapped) == (2, 1)
        scheduler.abort(request.handle, 0.0)
        assert (num_held_on_host(scene), scheduler.num_swapped, scene.num_free) == (0, 0, 6)
    scheduler.check_invariants()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_resume_right_after_a_swap_reads_what_was_copied(depth: int) -> None:
    """C32: h takes a's slot and all its blocks for one step; the copies back come in the next plan."""
    scene = swap_scene(num_blocks=6, max_num_seqs=1, scheduling_policy="priority")
    arrivals = {1: [make_request("a", 14, max_tokens=6, priority=5)], 4: [make_request("h", 23, max_tokens=1)]}
    run = scene.run(arrivals, depth=depth)
    out = next(plan.step for plan in run.plans if len(plan.swap_out))
    back = next(plan.step for plan in run.plans if len(plan.swap_in))
    assert out < back <= out + depth
    assert run.outputs["a"] == scene_outputs("a", 14, 6)


def test_copies_of_a_plan_without_rows_travel_with_the_next_one() -> None:
    """C32, both directions in one plan: b is preempted while a's last step is in flight, in a step without rows."""
    scene = swap_scene(num_blocks=9, block_size=1, enable_prefix_caching=False)
    run = scene.run([make_request("a", 4, max_tokens=3), make_request("b", 2, max_tokens=6)], depth=2)
    (event,) = swaps(run)
    assert run.plans[event.step - 1].num_rows == 0
    (plan,) = [plan for plan in run.plans if len(plan.swap_out) or len(plan.swap_in)]
    assert sorted(plan.swap_out[:, 1]) == sorted(plan.swap_in[:, 0]) == [1, 2, 3]
    assert run.outputs["b"] == scene_outputs("b", 2, 6)


def test_the_fake_device_sees_a_copy_that_comes_too_early() -> None:
    """C33, the check itself: a block is copied out while the step that writes it is in flight."""
    scene = swap_scene(num_blocks=6)
    scene.scheduler.add(make_request("a", 8), 0.0)
    first = scene.scheduler.schedule(0.0)
    scene.model.submit(first)
    early = scene.scheduler.schedule(0.0)
    object.__setattr__(early, "swap_out", first.admitted[0].block_ids[0][:1].repeat(2)[None])
    with pytest.raises(RuntimeError, match="which a step in flight uses"):
        scene.model.submit(early)


def test_host_blocks_that_a_plan_reads_are_not_written_by_it() -> None:
    """C32: s comes back from both host blocks in the step in which q displaces r, which is recomputed therefore."""
    scene = swap_scene(
        num_blocks=8,
        num_host_blocks=2,
        max_num_seqs=2,
        max_overtakes=1,
        scheduling_policy="priority",
        enable_prefix_caching=False,
    )
    arrivals = {
        1: [make_request("s", 8, priority=1)],
        2: [make_request("h", 27, max_tokens=2), make_request("r", 3, priority=3)],
        4: [make_request("q", 4, priority=2)],
    }
    run = scene.run(arrivals)
    assert [(event.request_id, event.by, event.kind, event.step) for event in run.preemptions] == [
        ("s", "h", "swap", 2),
        ("r", "q", "recompute", 4),
    ]
    assert run.plans[3].swap_in[:, 0].tolist() == [1, 2]
    assert set(run.finished.values()) == {"length"}


def test_expected_output_is_what_the_prefix_model_says() -> None:
    """The scenes above with the fake executor compare runs; this ties the other model to a known value."""
    run = Scene(num_host_blocks=8, preemption_mode="swap", num_blocks=6).run(
        [make_request(name, 8, max_tokens=16) for name in ("a", "b")]
    )
    assert swaps(run)
    assert all(run.outputs[name] == expected_output(make_prompt(name, 8), 16) for name in ("a", "b"))
