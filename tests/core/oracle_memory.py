"""The oracle's part of docs/design/memory.md: two tiers, who gives way, how much must be free before a start.

The choice of ``preemption_mode = auto`` is told to the oracle (``kinds``); the cost model has tests of its own.
``victim = cheapest`` is followed while nothing was measured: cost then counts in tokens.
"""

from __future__ import annotations

from math import ceil, floor

from headway.config import CacheConfig, SchedulerConfig
from headway.core.reasons import ReasonCode
from tests.core.oracle_entry import Entry, OraclePool, OracleStep, Places, Start
from tests.core.oracle_state import OracleState


class OracleMemory(OracleState):
    """Adds what ``schedule`` does with blocks of either tier."""

    def __init__(self, config: SchedulerConfig, cache: CacheConfig) -> None:
        super().__init__(config, cache)
        self.step = OracleStep()
        self.grant: dict[str, int] = {}
        self.kinds: dict[str, str] = {}
        self.copies_out: dict[int, int] = {}  # host block -> device block; of several to one place the last counts
        self.survival = 0.5

    def wait(self, entry: Entry, reason: ReasonCode) -> None:
        self.grant.pop(entry.name, None)
        self.step.reasons[entry.name] = reason.value

    # --- leaving ---

    def preempt(self, row: Entry, cause: str) -> None:
        """'Swap out'."""
        mode = self.kinds[row.name] if self.config.preemption_mode == "auto" else self.config.preemption_mode
        row.swapped = mode == "swap" and self.copy_out(row)
        self.leave_slot(row)
        row.computed = row.computed if row.swapped else 0
        row.ran, row.protected, row.published_before = True, False, row.published
        self.step.preempted.append((row.name, cause, "swap" if row.swapped else "recompute"))
        self.wait(row, ReasonCode.PREEMPTED)

    def copy_out(self, row: Entry) -> bool:
        """Whether the row's content is on the host now."""
        places = [(group, index) for group in range(self.groups) for index in range(ceil(row.computed / self.size))]
        hashed = [at for at in places if self.shares(row) and at[1] < row.computed // self.size]
        kept = {at: self.host.index.get((at[0], self.content(row, at[1]))) for at in hashed}
        found = {at: block for at, block in kept.items() if block is not None}
        needed = len(places) - len(found) + self.host.num_unheld(found.values(), [])
        if not places or needed > self.host.num_free:
            return False
        self.host.adopt(found.values())
        row.host = dict(found)
        for group, index in places:
            if (group, index) not in found:
                block = row.host[group, index] = self.host.take()
                self.copies_out.pop(block, None)
                self.copies_out[block] = row.tables[group][index]
                if (group, index) in hashed:
                    self.host.publish(group, self.content(row, index), block)
        return True

    def victim_order(self, rows: list[Entry]) -> list[Entry]:
        """'Which kind, and who': in which order rows give way."""
        tail_first = list(reversed(rows))
        if self.config.victim == "newest" and self.policy.name != "paying_first":
            return tail_first
        ranks = {}
        for row in rows:
            cost = row.computed - self.survival * (row.published * self.size)
            ranks[row.name] = (-row.key[0], self.policy.victim_rank(row, cost))
        return sorted(tail_first[:-1], key=lambda row: ranks[row.name]) + tail_first[-1:]

    # --- coming back ---

    def start_of(self, q: Entry) -> Start:
        """Rule 4.1, and 'Swap in'."""
        device, host, count = dict[tuple[int, int], int](), dict[tuple[int, int], int](), 0
        if q.swapped:
            count = ceil(q.computed / self.size)
            for index in range(count):
                full = self.shares(q) and index < q.computed // self.size
                here = self.places_of(self.pool, q, index) if full else {}
                device.update(here)
                if not here:
                    host.update({at: block for at, block in q.host.items() if at[1] == index})
            return Start(count, q.computed, device, host)
        hit = self.num_hit_blocks(q)
        for index in range((len(q.tokens) - 1) // self.size if self.shares(q) else 0):
            found = self.places_of(self.pool if index < hit else self.host, q, index)
            (device if index < hit else host).update(found)
            if not found:
                break
            count += 1
        return Start(count, count * self.size, device, host)

    def num_hit_blocks(self, q: Entry) -> int:
        """Leading blocks on the device."""
        hit, limit = 0, (len(q.tokens) - 1) // self.size if self.shares(q) else 0
        while hit < limit and self.places_of(self.pool, q, hit):
            hit += 1
        return hit

    def places_of(self, pool: OraclePool, q: Entry, index: int) -> Places:
        """The block's places in a tier; none unless every group has it."""
        found = {(group, index): pool.index.get((group, self.content(q, index))) for group in range(self.groups)}
        return {at: block for at, block in found.items() if block is not None and None not in found.values()}

    def gate(self, q: Entry) -> int:
        """Rule 4.3."""
        gate = ceil(len(q.tokens) / self.size)
        if q.ran:
            gate = max(gate, min(ceil((len(q.tokens) + 1) / self.size), self.cache.num_blocks // self.groups))
        return gate

    def make_room(self, q: Entry, start: Start) -> list[Entry] | None:
        """Rows to displace so that ``q`` has a slot and its blocks (often none); None if it cannot have them."""
        lower = [row for row in reversed(self.rows()) if row.key[0] > q.key[0]]
        for count in range(len(lower) + 1):
            given_back = [block for row in lower[:count] for block in row.blocks()]
            staying = [row for row in self.rows() if row not in lower[:count]]
            need = self.blocks_to_start(q, start, staying)
            need += self.pool.num_unheld(start.device.values(), given_back)
            need += floor(self.config.watermark * self.cache.num_blocks) if staying else 0
            free = self.pool.num_free + self.pool.num_freed_by(given_back)
            if self.num_slots_left(lower[:count]) > 0 and need <= free:
                return lower[:count]
        return None

    def num_slots_left(self, without: list[Entry]) -> int:
        return self.config.max_num_seqs - len(self.rows()) - len(self.draining) + len(without)

    def blocks_to_start(self, q: Entry, start: Start, rows: list[Entry]) -> int:
        """'Reservation': blocks that ``q`` needs besides those it finds, if it ran with ``rows``."""
        certain, how = self.groups * self.gate(q) - len(start.device), self.config.reservation
        if how == "nothing" and not q.ran:
            first = min(len(q.tokens) - start.computed, self.config.max_num_batched_tokens)
            return self.groups * ceil((start.computed + first) / self.size) - len(start.device)
        if how == "all":
            blocks = ceil(self.longest_in_pool(q) / self.size)
            blocks += sum(max(0, ceil(self.longest(row) / self.size) - len(row.tables[0])) for row in rows)
            return max(certain, self.groups * blocks - len(start.device))
        if how == "predicted":
            held = self.groups * sum(len(row.tables[0]) for row in rows) + len(start.device)
            peak = self.groups * ceil(self.predicted_peak(q, rows) / self.size)
            return max(certain, (peak if rows else min(peak, self.cache.num_blocks)) - held)
        return certain

    def longest_in_pool(self, q: Entry) -> int:
        return min(self.longest(q), self.cache.num_blocks // self.groups * self.size)

    def predicted_peak(self, q: Entry, rows: list[Entry]) -> int:
        """Tokens held, rounded up generously, just before one of the requests ends, whichever moment is the worst."""
        rests = {row.name: self.predicted_rest(row, self.longest(row)) for row in rows}
        rests[q.name] = self.predicted_rest(q, self.longest_in_pool(q))
        peak = 0
        for last in [*rows, q]:
            living = [row for row in [*rows, q] if rests[row.name] >= rests[last.name]]
            peak = max(peak, sum(len(row.tokens) + rests[last.name] + self.size for row in living))
        return peak

    def predicted_rest(self, entry: Entry, longest: int) -> int:
        """Tokens still to come: on average of recent outputs that were longer than this one is."""
        most, outputs = max(1, longest - len(entry.tokens)), self.num_outputs(entry)
        longer = [length for length in self.output_lengths if length > outputs]
        return min(most, max(1, ceil(sum(longer) / len(longer)) - outputs)) if longer else most

    def observe_start(self, q: Entry, start: Start) -> None:
        """What a recomputed request found again of what it had published."""
        if q.ran and not q.swapped and q.published_before:
            found = min(q.published_before, len(start.device) // self.groups)
            self.survival += 0.05 * (found / q.published_before - self.survival)
