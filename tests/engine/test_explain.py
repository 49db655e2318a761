"""Every reason has words, with its numbers, and names who is in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.config import CacheConfig, SamplingParams, SchedulerConfig
from headway.core.reasons import ReasonCode, WaitReason
from headway.core.request import Request, Status
from headway.core.scheduler import Scheduler
from headway.engine.explain import STATES, TITLES, blockers, describe_waiting, explain
from headway.sim.fake import FakeExecutor
from tests.engine.builders import make_scheduler

CONFIG, CACHE = SchedulerConfig(max_num_seqs=4, prefill_schedule_interval=3), CacheConfig()


def text_of(code: ReasonCode, *, runs: bool = False, **numbers: int | str) -> str:
    reason = WaitReason(code, 7, **numbers)  # type: ignore[arg-type]
    explanation = explain(reason, CONFIG, CACHE, runs=runs)
    return f"{explanation.text} {explanation.release}"


@pytest.mark.parametrize("code", list(ReasonCode))
@pytest.mark.parametrize("runs", [False, True])
def test_every_reason_has_whole_sentences(code: ReasonCode, runs: bool) -> None:
    explanation = explain(WaitReason(code, 7), CONFIG, CACHE, runs=runs)

    assert explanation.title == TITLES[code]
    for sentence in (explanation.text, explanation.release):
        assert sentence[0].isupper() or sentence[0].isdigit()
        assert sentence.endswith(".")
        assert "  " not in sentence


def test_every_reason_is_in_the_documents() -> None:
    document = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()

    assert [code.value for code in ReasonCode if f"| `{code.value}` | {TITLES[code]} |" not in document] == []


def test_every_state_has_words() -> None:
    assert set(STATES) == set(Status)
    assert len(set(TITLES.values())) == len(ReasonCode)


@pytest.mark.parametrize(
    ("code", "numbers", "expected"),
    [
        (ReasonCode.QUEUE_POSITION, {"need": 12}, "12 requests are before it"),
        (ReasonCode.QUEUE_POSITION, {"need": 1}, "1 request is before it"),
        (ReasonCode.QUEUE_POSITION, {}, "It is first in the queue"),
        (ReasonCode.SLOTS_FULL, {}, "All 4 slots"),
        (
            ReasonCode.KV_SHORT,
            {"need": 1234, "free": 10},
            "needs 1,234 free KV blocks, and there are 10. 1,224 more blocks",
        ),
        (ReasonCode.KV_SHORT, {"need": 1, "free": 0}, "needs 1 free KV block, and there is none. 1 more block become"),
        (ReasonCode.KV_SHORT, {"need": 9, "free": 5, "by": "a"}, "for request a"),
        (ReasonCode.KV_SHORT, {}, "nobody was let in"),
        (ReasonCode.BUDGET_SPENT, {}, "2,048 tokens"),
        (ReasonCode.PREFIX_IN_FLIGHT, {"by": "a"}, "like that of request a"),
        (ReasonCode.PREFILL_CADENCE, {}, "one step in 3"),
        (ReasonCode.POLICY_HOLD, {"why": "too many of one tenant"}, "holds it back: too many of one tenant."),
        (ReasonCode.PREEMPTED, {"by": "a"}, "to request a"),
        (ReasonCode.PREEMPTED, {}, "to another request"),
    ],
)
def test_sentences_have_their_numbers(code: ReasonCode, numbers: dict[str, int | str], expected: str) -> None:
    assert expected in text_of(code, **numbers)


def test_a_row_that_waits_for_a_block_is_told_apart_from_a_request_that_waits_to_start() -> None:
    assert "next tokens" in text_of(ReasonCode.KV_SHORT, runs=True)


def test_a_prompt_that_must_not_be_cut_waits_for_a_whole_step() -> None:
    config = SchedulerConfig(enable_chunked_prefill=False, max_num_batched_tokens=8192)

    explanation = explain(WaitReason(ReasonCode.BUDGET_SPENT, 1), config, CACHE)

    assert "whole prompt" in explanation.text


def run_steps(scheduler: Scheduler, steps: int) -> None:
    executor = FakeExecutor(block_size=scheduler.cache.block_size)
    for _ in range(steps):
        plan = scheduler.schedule(0.0)
        executor.submit(plan)
        scheduler.update(plan, executor.collect(), 0.0)


def add(scheduler: Scheduler, name: str, prompt: int, max_tokens: int) -> None:
    scheduler.add(Request(name, [ord(name)] * prompt, SamplingParams(max_tokens=max_tokens)), 0.0)


def test_who_is_in_the_way() -> None:
    full = make_scheduler(max_num_seqs=2)
    for name, max_tokens in (("a", 50), ("b", 20), ("c", 5), ("d", 5)):
        add(full, name, 9, max_tokens)
    run_steps(full, 3)
    short = make_scheduler(num_blocks=9)
    for name, prompt in (("a", 9), ("b", 17), ("c", 9)):
        add(short, name, prompt, 4)
    run_steps(short, 1)

    seen_full, seen_short = full.inspect(), short.inspect()

    assert blockers(seen_full.reason_of_waiter(0), seen_full) == ("b", "a")  # b ends first
    assert blockers(seen_full.reason_of_waiter(1), seen_full) == ("c",)  # at the head of the queue
    assert blockers(seen_short.reason_of_waiter(0), seen_short) == ("b", "a")  # b holds more
    assert blockers(WaitReason(ReasonCode.PREFIX_IN_FLIGHT, 1, by="a"), seen_full) == ("a",)
    assert blockers(WaitReason(ReasonCode.POLICY_HOLD, 1, why="a whim"), seen_full) == ()


def test_long_prompts_in_the_way_are_named() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8)
    for name, prompt in (("a", 1), ("b", 60), ("c", 60)):
        add(scheduler, name, prompt, 9)
    run_steps(scheduler, 2)

    seen = scheduler.inspect()

    assert seen.reason_of_waiter(0).code is ReasonCode.BUDGET_SPENT
    assert blockers(seen.reason_of_waiter(0), seen) == ("b",)


def test_a_line_about_who_waits() -> None:
    counts = dict.fromkeys(ReasonCode, 0)
    assert describe_waiting(counts) == ""

    assert (
        describe_waiting({**counts, ReasonCode.KV_SHORT: 1, ReasonCode.QUEUE_POSITION: 3})
        == "3 behind others in the queue, 1 not enough KV blocks"
    )
