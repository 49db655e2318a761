"""Stalls, limits and hits: small scenes after public bug reports of other engines, by their numbers in our list.

Further scenes are in test_cases_preemption.py and test_cases_load.py.
"""

from __future__ import annotations

import pytest

from headway.core.plan import StepResult
from headway.core.reasons import ReasonCode
from headway.core.request import RequestRefused
from tests.core.builders import (
    PrefixModel,
    expected_output,
    make_prompt,
    make_request,
    make_scheduler,
)
from tests.core.scene import Scene

# --- refusals and limits ---


def test_request_larger_than_pool_is_refused_and_others_finish() -> None:
    """C01: 60 tokens of prompt, room for 40."""
    scene = Scene(num_blocks=10, max_model_len=256)
    run = scene.run([make_request("a", 60), make_request("b", 4, max_tokens=2)])
    refusal = run.refused["a"]
    assert (refusal.field, refusal.value, refusal.limit) == ("prompt", 60, 39)
    assert "10 blocks of 4" in str(refusal)
    assert run.finished == {"b": "length"}


def test_request_that_outgrows_pool_gets_what_fits_and_ends_with_kv_capacity() -> None:
    """C01, variant: the prompt fits, prompt and output do not."""
    scene = Scene(num_blocks=10, max_model_len=256)
    requests = [make_request("a", 36, max_tokens=20), make_request("b", 4, max_tokens=2)]
    run = scene.run(requests)
    assert run.finished == {"a": "kv_capacity", "b": "length"}
    # KV of 40 tokens fits; the 41st token is sampled from it and needs none.
    assert run.outputs["a"] == expected_output(make_prompt("a", 36), 5)
    assert scene.num_free == 10


def test_lone_request_that_fills_the_pool_ends_and_the_next_one_runs() -> None:
    """C03: nobody is left to preempt."""
    scene = Scene(num_blocks=4, max_model_len=256)
    arrivals = {1: [make_request("a", 8, max_tokens=100)], 3: [make_request("b", 4, max_tokens=2)]}
    run = scene.run(arrivals)
    assert run.finished == {"a": "kv_capacity", "b": "length"}
    assert len(run.outputs["a"]) == 16 + 1 - 8
    assert scene.num_free == 4


@pytest.mark.parametrize(
    ("request_id", "prompt", "field", "limit"),
    [("empty", [], "prompt", None), ("long", 64, "prompt", 63), ("taken", 8, "request_id", None)],
)
def test_malformed_request_is_refused_with_field_and_limit_and_leaves_nothing(
    request_id: str, prompt: int | list[int], field: str, limit: int | None
) -> None:
    """C86 and the refusals of step.md."""
    scheduler = make_scheduler()
    scheduler.add(make_request("taken"), now=0.0)
    with pytest.raises(RequestRefused) as caught:
        scheduler.add(make_request(request_id, prompt), now=0.0)
    assert (caught.value.field, caught.value.limit) == (field, limit)
    assert scheduler.num_waiting == 1
    assert len(scheduler.take_events()) == 1


def test_name_of_a_finished_request_can_be_used_again() -> None:
    """A name is taken only while its request is live, not while its aborted step drains."""
    scene = Scene()
    arrivals = {1: [make_request("a", 8)], 2: [make_request("a", 4)]}
    run = scene.run(arrivals, late_aborts={1: ["a"]}, depth=2)
    assert not run.refused
    assert run.outputs["a"] == expected_output(make_prompt("a", 4), 4)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("prompt", [28, 29, 30, 31])
def test_request_near_the_model_length_stops_there_by_itself(prompt: int, depth: int) -> None:
    """C65, C102: lengths 28 to 31 of 32, with steps in flight."""
    scene = Scene(max_model_len=32)
    run = scene.run([make_request("a", prompt, max_tokens=None)], depth=depth)
    assert run.finished == {"a": "length"}
    assert len(run.outputs["a"]) == 32 - prompt
    assert sum(run.scheduled["a"].values()) == 31


@pytest.mark.parametrize("known", [28, 29, 30, 31])
def test_request_resumed_near_the_model_length_stops_there_by_itself(known: int) -> None:
    """C65: displaced when it has 28 to 31 of 32 tokens, then resumed from the prefix cache."""
    scene = Scene(max_model_len=32, max_num_seqs=1, scheduling_policy="priority")
    arrivals = {
        1: [make_request("a", 24, max_tokens=None, priority=5)],
        known - 24 + 1: [make_request("urgent", 4, max_tokens=1)],
    }
    run = scene.run(arrivals)
    assert [event.request_id for event in run.preemptions] == ["a"]
    assert run.finished == {"a": "length", "urgent": "length"}
    assert run.outputs["a"] == expected_output(make_prompt("a", 24), 8)


def test_length_cap_does_not_hide_a_stop_at_the_same_token() -> None:
    """C69, without drafts: the stop rules are asked in the order end-of-text, stop ids, length."""
    fifth = expected_output(make_prompt("a", 8), 5)[4]
    for ending in ({"eos_token_ids": [fifth], "ignore_eos": False}, {"stop_token_ids": (fifth,)}):
        run = Scene().run([make_request("a", 8, max_tokens=5, **ending)])
        assert run.finished == {"a": "stop"}
    run = Scene().run([make_request("a", 8, max_tokens=5, eos_token_ids=[fifth])])
    assert run.finished == {"a": "length"}


def test_stop_token_counts_only_from_min_tokens_on() -> None:
    """A stop that comes before ``min_tokens`` outputs is delivered like any token."""
    second, third = expected_output(make_prompt("a", 8), 3)[1:]
    request = make_request("a", 8, max_tokens=9, min_tokens=3, stop_token_ids=(second, third))
    run = Scene().run([request])
    assert run.finished == {"a": "stop"}
    assert run.outputs["a"][1:] == [second, third]


# --- no stalls ---


def test_head_of_the_queue_starts_at_once_when_nothing_runs() -> None:
    """C13: six wait for the blocks of one, which is aborted."""
    scene = Scene(num_blocks=10)
    waiting = [make_request(f"r{number}", 30, max_tokens=2) for number in range(6)]
    run = scene.run({1: [make_request("a", 36, max_tokens=50)], 2: waiting}, aborts={4: ["a"]})
    assert run.reason(3, "r0") == "kv_short"
    assert run.admitted_at("r0") == [4]
    assert len(run.finished) == 7


@pytest.mark.parametrize("groups", [1, 2])
def test_cached_blocks_that_nobody_holds_can_all_be_taken(groups: int) -> None:
    """C14: what counts as free must be usable, in several cache groups too."""
    scene = Scene(num_blocks=12 * groups, num_groups=groups)
    run = scene.run([make_request("a", 23, max_tokens=1), make_request("b", 24, max_tokens=1)])
    assert scene.num_free == 12 * groups
    assert scene.scheduler.kv.pool.num_entries == 11 * groups
    run = scene.run([make_request("c", 47, max_tokens=1)])
    assert run.finished == {"c": "length"}
    assert run.plans[0].num_tokens == 47


def test_half_done_prompt_needs_no_second_slot_for_its_next_chunk() -> None:
    """C16: one slot, eight tokens a step."""
    scene = Scene(max_num_seqs=1, max_num_batched_tokens=8)
    run = scene.run([make_request("a", 20, max_tokens=2)])
    assert list(run.scheduled["a"].values()) == [8, 8, 4, 1]


@pytest.mark.parametrize("how", ["cache off", "prompt logprobs"])
def test_prompt_that_is_not_cached_finishes_in_chunks(how: str) -> None:
    """C18, the engine's part: what keeps a request out of the cache does not keep it from moving on."""
    scene = Scene(max_model_len=80, max_num_batched_tokens=16, enable_prefix_caching=how == "prompt logprobs")
    request = make_request("a", 64, max_tokens=2, prompt_logprobs=1 if how == "prompt logprobs" else None)
    run = scene.run([request])
    assert list(run.scheduled["a"].values()) == [16, 16, 16, 16, 1]
    assert scene.scheduler.kv.pool.num_entries == 0


def test_more_slots_than_blocks_lets_all_finish() -> None:
    """C109: one huge block per request, four blocks, eight slots."""
    scene = Scene(block_size=64, num_blocks=4, max_num_seqs=8, max_num_batched_tokens=8)
    requests = [make_request(f"r{number}", 32, max_tokens=8) for number in range(8)]
    run = scene.run(requests)
    assert set(run.finished.values()) == {"length"}
    assert len(run.finished) == 8
    assert max(plan.num_rows for plan in run.plans) <= 4


# --- hits ---


@pytest.mark.parametrize(("prompt", "hit"), [(16, 12), (17, 16), (4, 0), (1, 0)])
def test_fully_cached_prompt_computes_at_least_one_token(prompt: int, hit: int) -> None:
    """C46: a warm run computes something and gives the cold run's tokens."""
    scene = Scene()
    tokens = make_prompt("shared", prompt)
    cold = scene.run([make_request("cold", tokens, max_tokens=3)])
    warm = scene.run([make_request("warm", tokens, max_tokens=3)])
    (admission,) = warm.admissions
    assert admission.num_cached_tokens == hit
    assert warm.plans[0].num_tokens == prompt - hit
    assert warm.outputs["warm"] == cold.outputs["cold"]


def test_salts_keep_prefixes_apart_but_share_within() -> None:
    """C51: A, A, B and none; only the second finds anything."""
    scene = Scene()
    tokens = make_prompt("shared", 16)
    hits = []
    for number, salt in enumerate(["A", "A", "B", ""]):
        run = scene.run([make_request(f"r{number}", tokens, cache_salt=salt)])
        hits.append(run.admissions[0].num_cached_tokens)
    assert hits == [0, 12, 0, 0]


def test_prefix_is_computed_once_by_requests_that_come_together() -> None:
    """step.md 4.2: the others wait for the row that computes their next block, then hit."""
    scene = Scene(max_num_batched_tokens=8)
    shared = make_prompt("shared", 16)
    requests = [make_request(f"r{number}", [*shared, number], max_tokens=2) for number in range(3)]
    run = scene.run(requests)
    assert run.reason(1, "r1") == run.reason(2, "r2") == "prefix_in_flight"
    assert run.reasons[0]["r1"].by == "r0"
    assert [event.num_cached_tokens for event in run.admissions] == [0, 16, 16]
    assert run.num_computed_tokens == 17 + 1 + 1 + 3


def test_hit_counters_tell_reuse_from_own_work_found_again() -> None:
    """C100: distinct prompts under preemption have no hits; what the preempted find is counted apart."""
    scene = Scene(num_blocks=9, max_num_seqs=3)
    run = scene.run([make_request(f"r{number}", 8, max_tokens=12) for number in range(4)])
    assert run.preemptions
    first, resumed = scene.scheduler.kv.stats.first, scene.scheduler.kv.stats.resumed
    assert (first.requests, first.hits, first.hit_tokens, first.query_tokens) == (4, 0, 0, 32)
    assert resumed.requests == len(run.preemptions)
    assert resumed.hits > 0


def test_request_that_was_tried_in_vain_counts_as_one_query() -> None:
    """C100: refused by every step until blocks are free, then admitted."""
    scene = Scene(num_blocks=5)
    run = scene.run([make_request("a", 12, max_tokens=6), make_request("b", 12)])
    assert [run.reason(step, "b") for step in range(1, 7)] == ["kv_short"] * 6
    assert run.admitted_at("b") == [7]
    assert (scene.scheduler.kv.stats.first.requests, scene.scheduler.kv.stats.first.query_tokens) == (2, 24)


# --- the protocol ---


def test_reason_for_short_blocks_says_how_many_are_needed_and_free() -> None:
    """``kv_short`` carries the numbers it was decided on; the watermark counts as needed."""
    scheduler = make_scheduler(num_blocks=10, watermark=0.2)
    for name in ("a", "b", "c"):
        scheduler.add(make_request(name, 20), now=0.0)
    scheduler.schedule(now=0.0)
    reasons = scheduler.wait_reasons()
    assert sorted(reasons) == ["b", "c"]
    assert (reasons["b"].code, reasons["b"].need, reasons["b"].free) == (ReasonCode.KV_SHORT, 5 + 2, 5)
    assert (reasons["c"].code, reasons["c"].need) == (ReasonCode.QUEUE_POSITION, 1)
    assert scheduler.wait_reason("unknown") is None


def test_results_are_taken_in_the_order_of_plans_only() -> None:
    """A result of another step, or twice, is refused before it changes anything."""
    scheduler, model = make_scheduler(), PrefixModel()
    scheduler.add(make_request("a"), now=0.0)
    plans = [scheduler.schedule(now=0.0), scheduler.schedule(now=0.0)]
    for plan in plans:
        model.submit(plan)
    first, second = model.collect(), model.collect()
    with pytest.raises(ValueError, match="next in order is 1"):
        scheduler.update(plans[1], second, now=0.0)
    scheduler.update(plans[0], first, now=0.0)
    with pytest.raises(ValueError, match="next in order is 2"):
        scheduler.update(plans[0], first, now=0.0)
    with pytest.raises(ValueError, match="0 rows"):
        scheduler.update(plans[1], StepResult(2, second.tokens[:0], second.counts[:0]), now=0.0)
    assert scheduler.update(plans[1], second, now=0.0).counts.tolist() == [1]


def test_failed_row_ends_its_request_alone() -> None:
    """C99, the scheduler's part: one row's failure is that request's error; others go on."""
    run = Scene(failures={2: {0: "out of luck"}}).run([make_request("a"), make_request("b")])
    assert run.finished == {"a": "error", "b": "length"}
    assert len(run.outputs["a"]) == 1
    assert [event.message for event in run.events if getattr(event, "message", "")] == ["out of luck"]
