"""A trace is decided again, and everything that happened is found in it."""

from __future__ import annotations

import json

import pytest

from headway.cli.findings import find_all
from headway.cli.replay import ReplayDiffers
from headway.cli.timeline import RequestLine, Timeline
from tests.cli.builders import PROMPTS, record, timeline_of


def line(timeline: Timeline, request_id: str) -> RequestLine:
    return next(found for found in timeline.requests if found.request_id == request_id)


def plans(trace: str) -> list[dict[str, list[int]]]:
    lines = [json.loads(text) for text in trace.splitlines()]
    return [found for found in lines if found["kind"] == "plan"]


def test_every_token_of_every_plan_is_in_the_timeline() -> None:
    trace = record()
    timeline = timeline_of(trace)

    rows = [plan for plan in plans(trace) if plan["slots"]]
    assert [step.num_decode + step.num_prefill for step in timeline.steps] == [sum(p["num_scheduled"]) for p in rows]
    assert sum(len(found.decodes) for found in timeline.requests) == sum(step.num_decode for step in timeline.steps)
    chunks = [chunk for found in timeline.requests for chunk in found.chunks]
    assert sum(chunk.num_tokens for chunk in chunks) == sum(step.num_prefill for step in timeline.steps)
    assert sum(chunk.num_again for chunk in chunks) == sum(step.num_again for step in timeline.steps)


def test_without_pressure_each_prompt_is_computed_once() -> None:
    timeline = timeline_of(record(num_blocks=100))

    for request_id, prompt in PROMPTS.items():
        found = line(timeline, request_id)
        cached = sum(hit.num_tokens for hit in found.hits)
        assert cached + sum(chunk.num_tokens for chunk in found.chunks) == len(prompt)
        assert (found.preemptions, found.num_again) == ([], 0)
        assert found.finish is not None and found.finish[1] == "length"
        assert found.num_output_tokens == 12
        assert len(found.decodes) == 11


def test_a_long_prompt_is_chunked_and_a_shared_beginning_is_hit() -> None:
    timeline = timeline_of(record(num_blocks=100))

    assert all(chunk.is_part for chunk in line(timeline, "long").chunks)
    assert not any(chunk.is_part for chunk in line(timeline, "short").chunks)
    assert [hit.num_tokens for hit in line(timeline, "second").hits] == [16]
    assert {code for _, code in line(timeline, "second").waits} >= {"prefix_in_flight"}


def test_a_victim_computes_again_only_what_the_cache_lost() -> None:
    timeline = timeline_of(record(enable_prefix_caching=False))

    victims = [found for found in timeline.requests if found.preemptions]
    assert victims
    for victim in victims:
        assert len(victim.admissions) == len(victim.preemptions) + 1
        assert victim.num_again == sum(event.num_lost_tokens for event in victim.preemptions)
    assert all(step.num_cached == 0 for step in timeline.steps)


def test_blocks_held_and_cached_never_exceed_the_pool() -> None:
    timeline = timeline_of(record())

    assert all(0 < step.num_held <= 20 and step.num_held + step.num_cached <= 20 for step in timeline.steps)
    assert any(step.num_cached for step in timeline.steps)


def test_an_abort_ends_a_request_where_it_happened() -> None:
    timeline = timeline_of(record(num_blocks=100, abort_at={5: "long"}))

    assert line(timeline, "long").finish == (5, "abort")


def test_a_stop_string_is_an_end_by_stop() -> None:
    lines = [json.loads(text) for text in record(num_blocks=100, abort_at={5: "long"}).splitlines()]
    for found in lines:
        if found["kind"] == "abort":
            found["why"] = "stop"

    timeline = timeline_of("\n".join(map(json.dumps, lines)))

    assert line(timeline, "long").finish == (5, "stop")


def test_a_trace_that_cannot_be_repeated_is_refused() -> None:
    lines = [json.loads(text) for text in record().splitlines()]
    first = next(found for found in lines if found["kind"] == "plan")
    first["num_scheduled"][0] -= 1

    with pytest.raises(ReplayDiffers, match=r"step 1 .* num_scheduled"):
        timeline_of("\n".join(map(json.dumps, lines)))


def test_findings_say_what_happened_and_where() -> None:
    timeline = timeline_of(record())

    chunking, hits, preemption = find_all(timeline)

    assert chunking.count == 2
    assert "long ran in 4 chunks of 9, 11, 11, 9 tokens, steps 1 to 4" in chunking.sentence
    assert hits.count == 1
    assert "second found 16 of its 17" in hits.sentence
    events = [event for found in timeline.requests for event in found.preemptions]
    assert preemption.count == len(events) > 0
    assert f"first at step {min(event.step for event in events)}" in preemption.sentence


def test_a_swapped_request_computes_nothing_again() -> None:
    timeline = timeline_of(record(num_host_blocks=40, preemption_mode="swap", enable_prefix_caching=False))

    events = [event for found in timeline.requests for event in found.preemptions]
    assert events and {event.kind for event in events} == {"swap"}
    assert sum(found.num_again for found in timeline.requests) == 0
    assert "blocks copied to the host" in find_all(timeline)[2].sentence


def test_findings_say_what_did_not_happen() -> None:
    findings = find_all(timeline_of(record({"a": [1, 2], "b": [3, 4]}, num_blocks=100)))

    assert [found.count for found in findings] == [0, 0, 0]


def test_replay_counts_steps_as_the_run_did() -> None:
    trace = record()

    assert timeline_of(trace).num_steps == plans(trace)[-1]["step"]
