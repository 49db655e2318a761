"""Checks that hold after every step of any scheduler: P1..P10 of docs/design/step.md and what they rest on.

:class:`StepChecker` knows a scheduler only from outside: it follows plans, outputs and events like an executor and a
client would, keeps its own books of slots, block tables, steps in flight and what is written in every block of either
tier (tests/core/block_checker.py), and compares. It works for any number of plans in flight and all options of
docs/design/memory.md. P8 is about two runs and is tested in test_properties.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Any

from headway.config import CacheConfig, SchedulerConfig
from headway.core.events import Admitted, Event, Finished, Preempted, StepOutput
from headway.core.plan import StepPlan, StepResult
from headway.core.reasons import ReasonCode, WaitReason
from headway.core.scheduler import Scheduler
from tests.core.block_checker import BlockChecker
from tests.core.books import Before, Book

MAY_BE_PASSED_OVER = (ReasonCode.PREFIX_IN_FLIGHT, ReasonCode.LONG_PREFILL_CAP, ReasonCode.POLICY_HOLD)


class StepChecker(BlockChecker):
    """Raises ``AssertionError`` naming the property (see docs/design/step.md) that a step broke."""

    def __init__(self, config: SchedulerConfig, cache: CacheConfig) -> None:
        super().__init__(config, cache)
        self.rows_of: dict[int, list[tuple[Book, int, int, bool]]] = {}
        self.was_idle = False

    def outside(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Finished):
                assert event.reason.value == "abort", self.broken("P7", f"{event} between steps")
                self.end(event)

    # --- a plan was made ---

    def scheduled(self, scheduler: Scheduler, plan: StepPlan, events: Sequence[Event]) -> None:
        assert plan.step == self.step + 1, self.broken("P8", f"step {plan.step} after step {self.step}")
        self.step = plan.step
        before = self._look_around()
        reasons = scheduler.wait_reasons()
        self._check_preemptions([event for event in events if isinstance(event, Preempted)], plan)
        for event in events:
            if isinstance(event, Finished):
                assert event.reason.value == "kv_capacity", self.broken("section 5", f"{event} while scheduling")
                self.end(event)
        self.copy_out(plan)
        self.enter_admitted(plan, [event for event in events if isinstance(event, Admitted)])
        self.enter_new_blocks(plan)
        self._advance(plan)
        self._check_progress(plan, events, before, reasons)
        self._check_order(plan, before, events, reasons)
        self._check_reasons(scheduler, plan, reasons)
        self.check_books(scheduler)
        if not plan.num_rows:
            scheduler.check_invariants()

    def _look_around(self) -> Before:
        rows = sorted((book for book in self.live.values() if book.slot is not None), key=lambda book: book.key)
        waiting = sorted((book for book in self.live.values() if book.slot is None), key=lambda book: book.queue_key)
        return Before(
            rows=rows,
            waiting=waiting,
            decodes=[book for book in rows if book.must_decode],
            flying=[book for book in self.occupied.values() if book.steps_inflight],
            protected=[book for book in rows if book.protected],
        )

    def _check_preemptions(self, events: Sequence[Preempted], plan: StepPlan) -> None:
        admitted = [row.request_id for row in plan.admitted]
        for event in events:
            book, by = self.live[event.request_id], self.live[event.by]
            assert not book.steps_inflight, self.broken("P6", f"{book} is preempted with steps in flight")
            if event.cause == "displaced":
                assert by.name in admitted and by.key[0] < book.key[0], self.broken("P5", f"{book} displaced by {by}")
            elif self.walks_from_tail:
                assert by.key < book.key, self.broken("P5", f"{book} gave its blocks to {by}, which is behind it")
            else:
                assert by.key[0] <= book.key[0], self.broken("P5", f"{book} gave its blocks to less urgent {by}")
            if book.protected:
                assert by.key[0] < book.key[0], self.broken("P10", f"{book} preempted again, for {by}")
            self.displace(event)

    @property
    def is_dynamic(self) -> bool:
        """Whether waiting requests get new ranks in every step, so that they do not compare with those of rows."""
        return self.config.scheduling_policy in ("longest_prefix", "fair")

    @property
    def walks_from_tail(self) -> bool:
        """Whether the last row in policy order gives way first."""
        return self.config.victim == "newest" and self.config.scheduling_policy != "paying_first"

    def _advance(self, plan: StepPlan) -> None:
        assert plan.num_tokens <= self.config.max_num_batched_tokens, self.broken("P1", f"{plan.num_tokens} tokens")
        assert len(self.occupied) <= self.config.max_num_seqs, self.broken("P1", f"{len(self.occupied)} rows")
        columns = (plan.slots, plan.num_scheduled, plan.starts, plan.samples)
        rows = self.rows_of[plan.step] = []
        for slot, scheduled, start, samples in zip(*(column.tolist() for column in columns), strict=True):
            book = self.occupied.get(slot)
            if book is None or book.done or book in [row[0] for row in rows]:
                raise AssertionError(f"P1: slot {slot} runs, where {book} is, after {rows}")
            end = start + scheduled
            assert scheduled >= 1 and start == book.computed, self.broken(
                "P1", f"{book}: {scheduled} tokens from {start}"
            )
            assert end <= book.target <= self.config.max_model_len, self.broken("P1", f"{book} runs up to {end}")
            assert samples == (end == book.target), self.broken("section 5", f"{book} samples={samples} at {end}")
            assert book.target < book.end_length or not samples, self.broken(
                "section 1", f"{book} samples past its end"
            )
            assert end <= len(book.tables[0]) * self.cache.block_size, self.broken("P6", f"{book} runs up to {end}")
            rows.append((book, start, scheduled, samples))
            book.computed, book.inflight = end, book.inflight + scheduled
            book.placeholders += samples
            book.steps_inflight += 1
        if rows:
            assert sorted(plan.released.tolist()) == sorted(self.released), self.broken(
                "section 5", f"released {self.released}"
            )
            self.released = []
        else:
            assert not plan.released.size, self.broken("section 5", f"{plan.released} released by a plan without rows")

    def _check_progress(
        self, plan: StepPlan, events: Sequence[Event], before: Before, reasons: dict[str, WaitReason]
    ) -> None:
        served = [row[0] for row in self.rows_of[plan.step]]
        holders = Counter(block for book in self.occupied.values() for table in book.tables for block in table)
        for book in before.decodes:
            if book in served or book.slot is None:
                continue
            reason = reasons[book.name].code
            if reason is ReasonCode.IN_FLIGHT and before.flying:
                urgent = [other for other in before.waiting if other.key[0] < book.key[0] and other.name in reasons]
                assert urgent, self.broken("P2", f"{book} is called off for nobody")
                continue
            assert reason is ReasonCode.KV_SHORT, self.broken("P2", f"{book} got no token: {reason}")
            assert book.computed == len(book.tables[0]) * self.cache.block_size, self.broken(
                "P2", f"{book} has its block"
            )
            if not self.walks_from_tail and book is not before.rows[0]:
                spared = book in before.flying or book in before.protected
                assert spared, self.broken("P2", f"{book} got no block and may be a victim")
                continue
            for other in before.rows:
                shared = all(holders[block] > 1 for table in other.tables for block in table)
                spared = other in before.flying or other in before.protected or shared
                behind = other.key > book.key and other.slot is not None
                assert spared or not behind, self.broken("P2", f"{book} got no block while {other} could give some")
        idle = bool(before.rows or before.waiting) and not before.flying and not plan.num_rows
        idle = idle and not any(isinstance(event, (Finished, Preempted)) for event in events)
        held = any(reason.code is ReasonCode.PREFILL_CADENCE for reason in reasons.values())
        on_hold = any(reason.code is ReasonCode.POLICY_HOLD for reason in reasons.values())
        assert not idle or on_hold or (held and not self.was_idle), self.broken("P3", f"nothing moves: {reasons}")
        self.was_idle = idle

    def _check_order(
        self, plan: StepPlan, before: Before, events: Sequence[Event], reasons: dict[str, WaitReason]
    ) -> None:
        served = [row[0] for row in self.rows_of[plan.step]]
        admitted = [self.live[row.request_id] for row in plan.admitted]
        running = served[: len(served) - len(admitted)]
        assert running == sorted(running, key=lambda book: book.key), self.broken("section 5", f"order {running}")
        in_queue_order = [book for book in before.waiting if book in admitted]
        assert admitted == in_queue_order, self.broken("section 5", f"order {admitted}, not {in_queue_order}")
        assert served[len(running) :] == admitted, self.broken("section 5", f"{served} does not end with {admitted}")
        self._check_overtaken(before, admitted, reasons)
        for event in events:
            if isinstance(event, Preempted):
                book = self.live[event.request_id]
                later = [other for other in admitted if other.key > book.key]
                assert not later, self.broken("P4", f"{event}, and yet {later} got in")
        for name, reason in reasons.items():
            if reason.code is ReasonCode.PREFIX_IN_FLIGHT:
                by = self.live[reason.by]
                last = (self.live[name].key[0], inf, 0) if self.is_dynamic else self.live[name].key
                assert by.slot is not None and by.key < last, self.broken("P4", f"{name} waits for {by}")

    def _check_overtaken(self, before: Before, admitted: list[Book], reasons: dict[str, WaitReason]) -> None:
        """Whom those who got in have overtaken, and whether they might."""
        left = [book for book in before.waiting if book not in admitted and not book.done]
        for other in admitted:
            passed = before.waiting[: before.waiting.index(other)]
            for book in left:
                if book not in passed or reasons[book.name].code in MAY_BE_PASSED_OVER:
                    continue
                short = reasons[book.name].code is ReasonCode.KV_SHORT
                book.overtaken += 1
                most = self.config.max_overtakes
                assert short and book.overtaken <= most, self.broken(
                    "P4", f"{book} overtaken by {other} for the {book.overtaken}th time: {reasons[book.name]}"
                )
        for book in left:
            assert book.overtaken == book.request.num_overtaken, self.broken("P4", f"{book}: {book.overtaken} times")

    def _check_reasons(self, scheduler: Scheduler, plan: StepPlan, reasons: dict[str, WaitReason]) -> None:
        served = [row[0].name for row in self.rows_of[plan.step]]
        assert sorted(reasons) == sorted(self.live.keys() - set(served)), self.broken("P9", f"{served}, {reasons}")
        for name in self.live:
            assert scheduler.wait_reason(name) == reasons.get(name), self.broken("P9", f"{name}: two reasons")
        stale = [reason for reason in reasons.values() if reason.step != plan.step]
        assert not stale, self.broken("P9", f"{stale} in step {plan.step}")

    # --- a result was taken in ---

    def updated(
        self, scheduler: Scheduler, plan: StepPlan, result: StepResult, output: StepOutput, events: Sequence[Event]
    ) -> None:
        rows = self.rows_of.pop(plan.step)
        delivered = dict(zip(output.rows.tolist(), range(len(output.rows)), strict=True))
        assert list(delivered) == sorted(delivered), self.broken("P7", f"rows {output.rows} out of order")
        finished = {event.request_id: event for event in events if isinstance(event, Finished)}
        assert list(output.finished) == list(finished.values()), self.broken("P7", f"{output.finished}, {events}")
        drained = []
        for number, (book, start, scheduled, samples) in enumerate(rows):
            book.steps_inflight -= 1
            book.inflight -= scheduled
            book.placeholders -= samples
            place = delivered.get(number)
            if book.done:
                assert place is None, self.broken("P7", f"{book} has ended but a token is delivered")
                drained += [book] if not book.steps_inflight else []
                continue
            tokens = [] if place is None else output.tokens[place, : output.counts[place]].tolist()
            sampled = result.tokens[number, : result.counts[number]].tolist()
            assert place is None or output.handles[place] == book.request.handle, self.broken("P7", f"{book}: handle")
            assert tokens == sampled[: len(tokens)], self.broken("P7", f"{book}: {tokens} delivered of {sampled}")
            if number not in result.failed:
                self.settle(book, start, scheduled, tokens)
            self._check_end(book, number in result.failed, len(tokens), len(sampled), finished.get(book.name))
        for book in drained:
            self.leave(book)
        for event in finished.values():
            self.end(event)
        self.check_books(scheduler)
        scheduler.check_invariants()

    def _check_end(self, book: Book, failed: bool, delivered: int, sampled: int, event: Finished | None) -> None:
        """The stop rules of step.md, 'update'."""
        reason = event.reason.value if event else None
        expected = "error" if failed else None
        for place in range(len(book.tokens) - delivered, len(book.tokens)):
            assert expected is None, self.broken("P7", f"{book} goes on after {expected}")
            token, outputs = book.tokens[place], place + 1 - book.request.num_prompt_tokens
            sampling: Any = book.request.sampling
            if outputs >= sampling.min_tokens and token in book.request.ending_token_ids:
                expected = "stop"
            elif place + 1 >= book.end_length:
                expected = "length"
        assert reason == expected, self.broken("update", f"{book} ended with {reason}, not {expected}")
        assert delivered == sampled or reason in ("stop", "length"), self.broken("P7", f"{book} lost tokens")
