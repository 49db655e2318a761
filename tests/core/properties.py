"""Checks that hold after every step of any scheduler: P1..P10 of docs/design/step.md and what they rest on.

:class:`StepChecker` knows a scheduler only from outside: it follows plans, outputs and events like an executor and a
client would, keeps its own books of slots, block tables, steps in flight and what is written in every block, and
compares. It works for any number of plans in flight. P8 is about two runs and is tested in test_properties.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.config import CacheConfig, SchedulerConfig
from headway.core.events import Admitted, Event, Finished, Preempted, StepOutput
from headway.core.plan import AdmittedRow, StepPlan, StepResult
from headway.core.reasons import ReasonCode, WaitReason
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from tests.core.builders import Watcher

MAY_BE_OVERTAKEN = (ReasonCode.PREFIX_IN_FLIGHT, ReasonCode.LONG_PREFILL_CAP)


@dataclass(eq=False)
class Book:
    """What is known of one request from outside."""

    request: Request
    key: tuple[int, int]
    tokens: list[int]
    end_length: int
    slot: int | None = None
    tables: list[list[int]] = field(default_factory=list)
    computed: int = 0
    inflight: int = 0
    placeholders: int = 0
    steps_inflight: int = 0
    ran: bool = False
    protected: bool = False
    done: bool = False

    @property
    def name(self) -> str:
        return self.request.request_id

    @property
    def target(self) -> int:
        return len(self.tokens) + self.placeholders

    @property
    def must_decode(self) -> bool:
        """Whether it is a decode row that may run (step.md, section 1)."""
        ending = self.placeholders > 0 and self.target >= self.end_length
        return self.slot is not None and self.target - self.computed == 1 and not ending

    def __repr__(self) -> str:
        return (
            f"{self.name}(key={self.key} slot={self.slot} tokens={len(self.tokens)}+{self.placeholders}"
            f" computed={self.computed} inflight={self.inflight} blocks={[len(t) for t in self.tables]}"
            f"{' protected' if self.protected else ''}{' done' if self.done else ''})"
        )


@dataclass
class Before:
    """The state a step found."""

    rows: list[Book]
    waiting: list[Book]
    decodes: list[Book]
    flying: list[Book]
    protected: list[Book]


class StepChecker(Watcher):
    """Raises ``AssertionError`` naming the property (see docs/design/step.md) that a step broke."""

    def __init__(self, config: SchedulerConfig, cache: CacheConfig) -> None:
        self.config, self.cache = config, cache
        self.live: dict[str, Book] = {}
        self.occupied: dict[int, Book] = {}
        self.released: list[int] = []
        self.rows_of: dict[int, list[tuple[Book, int, int, bool]]] = {}
        self.content: dict[tuple[int, int], tuple[str, list[int]]] = {}
        self.step = 0
        self.was_idle = False

    # --- requests come and go ---

    def added(self, request: Request) -> None:
        urgency = request.priority if self.config.scheduling_policy == "priority" else 0
        most = request.sampling.max_tokens
        length = self.config.max_model_len if most is None else request.num_prompt_tokens + most
        self.live[request.request_id] = Book(
            request, (urgency, request.handle), request.tokens.tolist(), min(length, self.config.max_model_len)
        )

    def outside(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Finished):
                assert event.reason.value == "abort", self.broken("P7", f"{event} between steps")
                self._end(event)

    def _end(self, event: Finished) -> None:
        book = self.live.pop(event.request_id, None)
        if book is None:
            raise AssertionError(f"P7: {event.request_id} ended twice or was never there")
        book.done = True
        outputs = len(book.tokens) - event.num_prompt_tokens
        assert event.num_output_tokens == outputs, self.broken("P7", f"{event} but {outputs} tokens were delivered")
        assert book.request.tokens.tolist() == book.tokens, self.broken("P7", f"{book} is not what was delivered")
        assert book.request.finish_reason is event.reason, self.broken("P7", f"{book.request} and {event}")
        if event.reason.value == "kv_capacity":
            more = len(book.tokens) if book.slot is None else book.computed + 1
            blocks = self.cache.num_groups * self._blocks(more)
            assert blocks > self.cache.num_blocks, self.broken("section 3", f"{book} could have {blocks} blocks")
        if book.slot is not None and not book.steps_inflight:
            self._leave(book)

    def _leave(self, book: Book) -> None:
        assert book.slot is not None
        del self.occupied[book.slot]
        self.released.append(book.slot)
        book.slot, book.tables, book.computed = None, [], 0

    # --- a plan was made ---

    def scheduled(self, scheduler: Scheduler, plan: StepPlan, events: Sequence[Event]) -> None:
        assert plan.step == self.step + 1, self.broken("P8", f"step {plan.step} after step {self.step}")
        self.step = plan.step
        books = sorted(self.live.values(), key=lambda book: book.key)
        rows = [book for book in books if book.slot is not None]
        before = Before(
            rows=rows,
            waiting=[book for book in books if book.slot is None],
            decodes=[book for book in rows if book.must_decode],
            flying=[book for book in self.occupied.values() if book.steps_inflight],
            protected=[book for book in rows if book.protected],
        )
        reasons = scheduler.wait_reasons()
        self._check_preemptions([event for event in events if isinstance(event, Preempted)], plan)
        for event in events:
            if isinstance(event, Finished):
                assert event.reason.value == "kv_capacity", self.broken("section 5", f"{event} while scheduling")
                self._end(event)
        self._enter_admitted(plan, [event for event in events if isinstance(event, Admitted)])
        self._enter_new_blocks(plan)
        self._advance(plan)
        self._check_progress(plan, events, before, reasons)
        self._check_order(plan, before, events, reasons)
        self._check_reasons(scheduler, plan, reasons)
        self._check_books(scheduler)
        if not plan.num_rows:
            scheduler.check_invariants()

    def _check_preemptions(self, events: Sequence[Preempted], plan: StepPlan) -> None:
        admitted = [row.request_id for row in plan.admitted]
        for event in events:
            book, by = self.live[event.request_id], self.live[event.by]
            assert not book.steps_inflight, self.broken("P6", f"{book} is preempted with steps in flight")
            assert event.slot == book.slot, self.broken("P8", f"{event} but {book}")
            assert event.num_lost_tokens == book.computed, self.broken("P8", f"{event} but {book}")
            if event.cause == "displaced":
                assert by.name in admitted and by.key[0] < book.key[0], self.broken("P5", f"{book} displaced by {by}")
            else:
                assert by.key < book.key, self.broken("P5", f"{book} gave its blocks to {by}, which is behind it")
            if book.protected:
                assert by.key[0] < book.key[0], self.broken("P10", f"{book} preempted again, for {by}")
            self._leave(book)
            book.ran, book.protected = True, False

    def _enter_admitted(self, plan: StepPlan, events: Sequence[Admitted]) -> None:
        assert len(events) == len(plan.admitted), self.broken("section 5", f"{events} for {plan.admitted}")
        for row, event in zip(plan.admitted, events, strict=True):
            book = self.live[row.request_id]
            assert row.slot not in self.occupied, self.broken("P6", f"slot {row.slot} is taken, {book} cannot enter it")
            assert book.slot is None, self.broken("section 4", f"{book} is admitted twice")
            assert row.tokens.tolist() == book.tokens, self.broken("P7", f"{book} is admitted with tokens {row.tokens}")
            assert row.resumed == book.ran, self.broken("section 4", f"{book} resumed={row.resumed}")
            facts = (event.request_id, event.slot, event.num_cached_tokens, event.resumed)
            assert facts == (book.name, row.slot, row.num_computed_tokens, row.resumed), self.broken("P8", f"{event}")
            book.slot, book.computed, book.protected = row.slot, row.num_computed_tokens, book.ran
            self.occupied[row.slot] = book
            self._enter_tables(book, row)

    def _enter_tables(self, book: Book, row: AdmittedRow) -> None:
        hit, size = row.num_computed_tokens // self.cache.block_size, self.cache.block_size
        assert row.num_computed_tokens == hit * size, self.broken("section 4", f"{book} hits part of a block")
        assert row.num_computed_tokens < len(book.tokens), self.broken(
            "section 4", f"{book} has nothing left to compute"
        )
        assert hit == 0 or self.cache.enable_prefix_caching, self.broken("section 4", f"{book} hits without a cache")
        for group, ids in enumerate(row.block_ids):
            table = ids.tolist()
            for index, block in enumerate(table[:hit]):
                wanted = (book.request.cache_salt, book.tokens[: (index + 1) * size])
                found = self.content.get((group, block))
                assert found == wanted, self.broken(
                    "P6", f"{book} hits block {block}, which holds {found}, not {wanted}"
                )
            for block in table[hit:]:
                self._take(book, block)
            book.tables.append(table)
        lengths = {len(table) for table in book.tables}
        assert len(book.tables) == self.cache.num_groups and len(lengths) == 1, self.broken("section 4", f"{book}")

    def _enter_new_blocks(self, plan: StepPlan) -> None:
        assert len(plan.new_blocks) == self.cache.num_groups, self.broken("section 5", f"{plan.new_blocks}")
        for group, new in enumerate(plan.new_blocks):
            for slot, index, block in zip(*(a.tolist() for a in (new.slots, new.index, new.block_ids)), strict=True):
                book = self.occupied.get(slot)
                if book is None or book.done:
                    raise AssertionError(f"section 5: block {block} for slot {slot}, where {book} is")
                assert len(book.tables[group]) == index, self.broken("section 3", f"{book}: block {block} at {index}")
                self._take(book, block)
                book.tables[group].append(block)

    def _take(self, book: Book, block: int) -> None:
        """A block handed out anew must be in nobody's table, be it of a row or of a step in flight."""
        for other in self.occupied.values():
            for table in other.tables:
                assert block not in table, self.broken("P6", f"{book} takes block {block}, which {other} holds")
        assert 1 <= block <= self.cache.num_blocks, self.broken("P6", f"{book} takes block {block}")
        for group in range(self.cache.num_groups):
            self.content.pop((group, block), None)

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
            for other in before.rows:
                shared = all(holders[block] > 1 for table in other.tables for block in table)
                spared = other in before.flying or other in before.protected or shared
                behind = other.key > book.key and other.slot is not None
                assert spared or not behind, self.broken("P2", f"{book} got no block while {other} could give some")
        idle = bool(before.rows or before.waiting) and not before.flying and not plan.num_rows
        idle = idle and not any(isinstance(event, (Finished, Preempted)) for event in events)
        held = any(reason.code is ReasonCode.PREFILL_CADENCE for reason in reasons.values())
        assert not idle or (held and not self.was_idle), self.broken("P3", f"nothing moves: {reasons}")
        self.was_idle = idle

    def _check_order(
        self, plan: StepPlan, before: Before, events: Sequence[Event], reasons: dict[str, WaitReason]
    ) -> None:
        served = [row[0] for row in self.rows_of[plan.step]]
        admitted = [self.live[row.request_id] for row in plan.admitted]
        running = served[: len(served) - len(admitted)]
        for books in (running, admitted):
            assert books == sorted(books, key=lambda book: book.key), self.broken("section 5", f"order {books}")
        assert served[len(running) :] == admitted, self.broken("section 5", f"{served} does not end with {admitted}")
        last = admitted[-1].key if admitted else (0, 0)
        for book in before.waiting:
            if book.done or book in admitted or not admitted or book.key > last:
                continue
            assert reasons[book.name].code in MAY_BE_OVERTAKEN, self.broken(
                "P4", f"{book} overtaken: {reasons[book.name]}"
            )
        for event in events:
            if isinstance(event, Preempted) and admitted:
                assert self.live[event.request_id].key > last, self.broken("P4", f"{event}, then {admitted[-1]} got in")
        for name, reason in reasons.items():
            if reason.code is ReasonCode.PREFIX_IN_FLIGHT:
                by = self.live[reason.by]
                assert by.slot is not None and by.key < self.live[name].key, self.broken("P4", f"{name} waits for {by}")

    def _check_reasons(self, scheduler: Scheduler, plan: StepPlan, reasons: dict[str, WaitReason]) -> None:
        served = [row[0].name for row in self.rows_of[plan.step]]
        assert sorted(reasons) == sorted(self.live.keys() - set(served)), self.broken("P9", f"{served}, {reasons}")
        for name in self.live:
            assert scheduler.wait_reason(name) == reasons.get(name), self.broken("P9", f"{name}: two reasons")
        stale = [reason for reason in reasons.values() if reason.step != plan.step]
        assert not stale, self.broken("P9", f"{stale} in step {plan.step}")

    def _check_books(self, scheduler: Scheduler) -> None:
        held = {block for book in self.occupied.values() for table in book.tables for block in table}
        free = scheduler.kv.pool.num_free
        assert free + len(held) == self.cache.num_blocks, self.broken("P6", f"{free} free, {len(held)} held")
        running = sum(book.slot is not None for book in self.live.values())
        assert scheduler.num_running == running, self.broken("P9", f"{scheduler.num_running} running, not {running}")
        waiting = len(self.live) - running
        assert scheduler.num_waiting == waiting, self.broken("P9", f"{scheduler.num_waiting} waiting, not {waiting}")
        assert scheduler.has_unfinished == bool(self.live or self.occupied), self.broken("P3", "has_unfinished")

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
                self._settle(book, start, scheduled, tokens)
            self._check_end(book, number in result.failed, len(tokens), len(sampled), finished.get(book.name))
        for book in drained:
            self._leave(book)
        for event in finished.values():
            self._end(event)
        self._check_books(scheduler)
        scheduler.check_invariants()

    def _settle(self, book: Book, start: int, scheduled: int, tokens: list[int]) -> None:
        book.tokens += tokens
        book.protected = book.protected and not tokens
        size = self.cache.block_size
        for index in range(start // size, (start + scheduled) // size):
            for group, table in enumerate(book.tables):
                self.content[group, table[index]] = (book.request.cache_salt, book.tokens[: (index + 1) * size])

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

    # --- small things ---

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.cache.block_size)

    def broken(self, rule: str, message: str) -> str:
        """What an assertion says: the rule, what went wrong, and all books."""
        books = "\n  ".join(map(repr, [*self.live.values(), *self.occupied.values()]))
        return f"{rule} of docs/design/step.md, step {self.step}: {message}\n  {books}"
