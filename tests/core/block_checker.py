"""Follows every block of both tiers from outside: whose it is, what is written in it, what is copied where.

It is the lower half of :class:`tests.core.properties.StepChecker`: P6 and P7 of docs/design/step.md, and what
docs/design/memory.md says of copies.
"""

from __future__ import annotations

from collections.abc import Sequence

from headway.config import CacheConfig, SchedulerConfig
from headway.core.events import Admitted, Finished, Preempted
from headway.core.plan import AdmittedRow, StepPlan
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from tests.core.books import Book, Content
from tests.core.builders import Watcher


class BlockChecker(Watcher):
    """Keeps books of requests, block tables and contents, and compares them with what a scheduler does."""

    def __init__(self, config: SchedulerConfig, cache: CacheConfig) -> None:
        self.config, self.cache = config, cache
        self.live: dict[str, Book] = {}
        self.occupied: dict[int, Book] = {}
        self.released: list[int] = []
        self.content: dict[int, Content] = {}
        self.host_content: dict[int, Content] = {}
        self.num_copies_due = 0
        self.step = 0

    # --- requests come and go ---

    def added(self, request: Request) -> None:
        most = request.sampling.max_tokens
        length = self.config.max_model_len if most is None else request.num_prompt_tokens + most
        self.live[request.request_id] = Book(request, request.tokens.tolist(), min(length, self.config.max_model_len))

    def end(self, event: Finished) -> None:
        """A request is no longer live."""
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
            blocks = self.cache.num_groups * self.blocks_for(more)
            assert blocks > self.cache.num_blocks, self.broken("section 3", f"{book} could have {blocks} blocks")
        if book.slot is not None and not book.steps_inflight:
            self.leave(book)

    def leave(self, book: Book) -> None:
        """Its slot and its blocks are free."""
        assert book.slot is not None
        del self.occupied[book.slot]
        self.released.append(book.slot)
        book.slot, book.tables, book.computed = None, [], 0

    def displace(self, event: Preempted) -> None:
        """A row was preempted: by recompute or swap, as the options allow."""
        book, swapped = self.live[event.request_id], event.kind == "swap"
        assert event.slot == book.slot, self.broken("P8", f"{event} but {book}")
        allowed = self.config.preemption_mode != "recompute" and self.cache.num_host_blocks > 0 and book.computed > 0
        assert event.kind == "recompute" or (swapped and allowed), self.broken("swap out", f"{event}")
        lost = 0 if swapped else book.computed
        assert event.num_lost_tokens == lost, self.broken("P8", f"{event} but {book}")
        most = self.cache.num_groups * self.blocks_for(book.computed) if swapped else 0
        assert event.num_copied_blocks <= most, self.broken("swap out", f"{event} but {book}")
        self.num_copies_due += event.num_copied_blocks
        book.swapped, book.saved, book.lost = swapped, book.computed if swapped else 0, lost
        self.leave(book)
        book.ran, book.protected = True, False

    # --- tables and contents ---

    def copy_out(self, plan: StepPlan) -> None:
        """Every block that a swap needs goes to the host, in the first plan with rows after it."""
        targets = plan.swap_out[:, 1].tolist()
        assert len(set(targets)) == len(targets) <= self.num_copies_due, self.broken("swap out", f"{plan.swap_out}")
        assert all(1 <= target <= self.cache.num_host_blocks for target in targets), self.broken("P6", f"{targets}")
        for source, target in plan.swap_out.tolist():
            self.host_content[target] = self.content[source]
        if plan.num_rows:
            self.num_copies_due = 0

    def enter_admitted(self, plan: StepPlan, events: Sequence[Admitted]) -> None:
        """Requests got slots."""
        assert len(events) == len(plan.admitted), self.broken("section 5", f"{events} for {plan.admitted}")
        copies = {target: source for source, target in plan.swap_in.tolist()}
        assert len(copies) == len(plan.swap_in), self.broken("swap in", f"two copies to one block: {plan.swap_in}")
        for row, event in zip(plan.admitted, events, strict=True):
            book = self.live[row.request_id]
            assert row.slot not in self.occupied, self.broken("P6", f"slot {row.slot} is taken, {book} cannot enter it")
            assert book.slot is None, self.broken("section 4", f"{book} is admitted twice")
            assert row.tokens.tolist() == book.tokens, self.broken("P7", f"{book} is admitted with tokens {row.tokens}")
            assert row.resumed == book.ran, self.broken("section 4", f"{book} resumed={row.resumed}")
            start = event.num_cached_tokens + event.num_restored_tokens
            facts = (event.request_id, event.slot, start, event.resumed)
            assert facts == (book.name, row.slot, row.num_computed_tokens, row.resumed), self.broken("P8", f"{event}")
            again = max(0, book.lost - start)
            assert event.num_recomputed_tokens == again, self.broken("P8", f"{event}, {again} computed again")
            book.slot, book.computed, book.protected = row.slot, row.num_computed_tokens, book.ran
            self.occupied[row.slot] = book
            restored = self._enter_tables(book, row, copies)
            assert event.num_restored_tokens == restored, self.broken("swap in", f"{event}, {restored} tokens copied")
            book.swapped, book.lost = False, 0
        assert not copies, self.broken("swap in", f"copies that nobody needs: {copies}")

    def _enter_tables(self, book: Book, row: AdmittedRow, copies: dict[int, int]) -> int:
        """Every block with content holds what its new reader expects, by itself or by a copy; tokens copied."""
        start, restored = row.num_computed_tokens, 0
        if book.swapped:
            assert start == book.saved, self.broken("swap in", f"{book} computes tokens again, from {start}")
        else:
            assert start % self.cache.block_size == 0, self.broken("section 4", f"{book} hits part of a block")
            assert not start or self.cache.enable_prefix_caching, self.broken("section 4", f"{book} hits without cache")
        assert start < len(book.tokens), self.broken("section 4", f"{book} has nothing left to compute")
        for group, ids in enumerate(row.block_ids):
            table = ids.tolist()
            for index, block in enumerate(table):
                begin, end = index * self.cache.block_size, min(start, (index + 1) * self.cache.block_size)
                if begin >= start:
                    self.take(book, block)
                    continue
                if block in copies:
                    self.take(book, block)
                    self.content[block] = self.host_content[copies.pop(block)]
                    restored += end - begin if group == 0 else 0
                wanted = (group, book.request.cache_salt, book.tokens[:end])
                found = self.content.get(block)
                assert found == wanted, self.broken("P6", f"{book}: block {block} holds {found}, not {wanted}")
            book.tables.append(table)
        lengths = {len(table) for table in book.tables}
        assert len(book.tables) == self.cache.num_groups and len(lengths) == 1, self.broken("section 4", f"{book}")
        return restored

    def enter_new_blocks(self, plan: StepPlan) -> None:
        """Rows that were there before took blocks."""
        assert len(plan.new_blocks) == self.cache.num_groups, self.broken("section 5", f"{plan.new_blocks}")
        for group, new in enumerate(plan.new_blocks):
            for slot, index, block in zip(*(a.tolist() for a in (new.slots, new.index, new.block_ids)), strict=True):
                book = self.occupied.get(slot)
                if book is None or book.done:
                    raise AssertionError(f"section 5: block {block} for slot {slot}, where {book} is")
                assert len(book.tables[group]) == index, self.broken("section 3", f"{book}: block {block} at {index}")
                self.take(book, block)
                book.tables[group].append(block)

    def take(self, book: Book, block: int) -> None:
        """A block handed out anew must be in nobody's table, be it of a row or of a step in flight."""
        for other in self.occupied.values():
            for table in other.tables:
                assert block not in table, self.broken("P6", f"{book} takes block {block}, which {other} holds")
        assert 1 <= block <= self.cache.num_blocks, self.broken("P6", f"{book} takes block {block}")
        self.content.pop(block, None)

    def settle(self, book: Book, start: int, scheduled: int, tokens: list[int]) -> None:
        """A step has written KV and delivered ``tokens``."""
        size, end = self.cache.block_size, start + scheduled
        for index in range(start // size, self.blocks_for(end)):
            for group, table in enumerate(book.tables):
                upto = book.tokens[: min(end, (index + 1) * size)]
                self.content[table[index]] = (group, book.request.cache_salt, upto)
        book.tokens += tokens
        book.protected = book.protected and not tokens

    def check_books(self, scheduler: Scheduler) -> None:
        """Conservation on either tier, and the numbers that the scheduler tells of itself."""
        held = {block for book in self.occupied.values() for table in book.tables for block in table}
        free = scheduler.kv.pool.num_free
        assert free + len(held) == self.cache.num_blocks, self.broken("P6", f"{free} free, {len(held)} held")
        swapped = [book for book in self.live.values() if book.swapped]
        kept = {block for book in swapped for table in book.request.host_tables for block in table.tolist()}
        if scheduler.kv.host is not None:
            free = scheduler.kv.host.pool.num_free
            assert free + len(kept) == self.cache.num_host_blocks, self.broken("P6", f"host: {free} free, {kept} held")
        running = sum(book.slot is not None for book in self.live.values())
        assert scheduler.num_running == running, self.broken("P9", f"{scheduler.num_running} running, not {running}")
        waiting = len(self.live) - running
        assert scheduler.num_waiting == waiting, self.broken("P9", f"{scheduler.num_waiting} waiting, not {waiting}")
        assert scheduler.num_swapped == len(swapped), self.broken("P9", f"{scheduler.num_swapped} swapped")
        assert scheduler.has_unfinished == bool(self.live or self.occupied), self.broken("P3", "has_unfinished")

    # --- small things ---

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks of one group that hold so many tokens."""
        return -(-num_tokens // self.cache.block_size)

    def broken(self, rule: str, message: str) -> str:
        """What an assertion says: the rule, what went wrong, and all books."""
        books = "\n  ".join(map(repr, [*self.live.values(), *self.occupied.values()]))
        return f"{rule} of docs/design/, step {self.step}: {message}\n  {books}"
