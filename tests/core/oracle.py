"""The scheduler again, one request and one block at a time: slow and plain, to hold the columnar one against.

It follows docs/design/step.md paragraph by paragraph (section numbers are of that text), and docs/design/memory.md in
tests/core/oracle_memory.py, for one step at a time: every plan is updated before the next is made, so nothing is in
flight when ``schedule`` runs. It shares nothing with the scheduler but the options and the words for reasons.
"""

from __future__ import annotations

from math import ceil

from headway.core.reasons import ReasonCode
from headway.core.request import FinishReason
from tests.core.oracle_entry import Entry, OracleStep, Start
from tests.core.oracle_memory import OracleMemory

PASSED_OVER = (ReasonCode.PREFIX_IN_FLIGHT, ReasonCode.LONG_PREFILL_CAP)


class Oracle(OracleMemory):
    """One ``schedule``, one ``update``, and so on."""

    def schedule(self, now: float) -> OracleStep:
        self.step = OracleStep()
        self.grant = {}
        self.new_blocks: list[tuple[Entry, int, int, int]] = []
        self.admitted: list[Entry] = []
        waiting = [entry for entry in self.live.values() if entry.slot is None]
        held = self.grant_tokens()
        short = self.fit_blocks()
        self.policy.rerank(waiting, now, {q.name: self.num_hit_blocks(q) for q in waiting})
        for entry in waiting:
            self.wait(entry, ReasonCode.KV_SHORT if short else ReasonCode.QUEUE_POSITION)
        if not short:
            self.admit(sorted(waiting, key=lambda entry: entry.queue_key), held)
        self.free_host_blocks()
        return self.make_plan(held)

    def grant_tokens(self) -> bool:
        """Sections 1 and 2; whether the step is held. Without steps in flight every row wants something."""
        threshold, since = self.config.long_prefill_token_threshold, self.steps_since_prefill
        decodes = [row for row in self.rows() if row.want == 1]
        held = len(decodes) > 0 and since is not None and since < self.config.prefill_schedule_interval - 1
        self.capped = threshold > 0 and len(self.live) > 1
        self.grant.update({row.name: 1 for row in decodes})
        self.left = self.config.max_num_batched_tokens - len(decodes)
        self.long_left = max(1, self.left // 2)
        self.long: set[str] = set()
        for row in self.rows():
            if row.want == 1:
                continue
            if held:
                self.wait(row, ReasonCode.PREFILL_CADENCE)
                continue
            grant = min(row.want, self.left)
            if self.capped and row.want > threshold:
                self.long.add(row.name)
                grant = min(grant, threshold, self.long_left)
            if grant > 0:
                self.grant[row.name] = grant
                self.spend(row, grant)
            else:
                capped = row.name in self.long and self.long_left == 0 and self.left > 0
                self.wait(row, ReasonCode.LONG_PREFILL_CAP if capped else ReasonCode.BUDGET_SPENT)
        return held

    def spend(self, entry: Entry, tokens: int) -> None:
        self.left -= tokens
        self.long_left -= tokens if entry.name in self.long else 0

    def fit_blocks(self) -> bool:
        """Section 3; whether the step is short."""
        rows, victims = self.rows(), list[Entry]()
        needs = {row.name: self.need(row) for row in rows}
        total, avail = sum(needs.values()), self.pool.num_free
        short = total > avail
        for v in self.victim_order(rows):
            if total <= avail:
                break
            need, room = needs[v.name], avail - (total - needs[v.name])
            if v.want > 1 and v.name in self.grant and room >= 0:
                self.trim(v, room)
                break
            if v is rows[0]:
                self.wait(v, ReasonCode.KV_SHORT)
                break
            given_back = [block for victim in victims for block in victim.blocks()]
            frees = self.pool.num_freed_by(given_back + v.blocks()) - self.pool.num_freed_by(given_back)
            growing = [row for row in rows if row.key < v.key and needs[row.name] > 0]
            is_protected = v.protected and not (growing and growing[0].key[0] < v.key[0])
            total, needs[v.name] = total - need, 0
            if not is_protected and (need > 0 or frees > 0):
                victims.append(v)
                avail += frees
            elif need > 0:
                self.wait(v, ReasonCode.KV_SHORT)
        for v in victims:
            self.preempt(v, "blocks")
        if rows and self.step.reasons.get(rows[0].name) == "kv_short" and len(victims) == len(rows) - 1:
            self.finish(rows[0], FinishReason.KV_CAPACITY)
        for row in self.rows():
            if row.name in self.grant:
                self.take_blocks(row, ceil((row.computed + self.grant[row.name]) / self.size))
        return short

    def need(self, row: Entry) -> int:
        end = row.computed + self.grant.get(row.name, 0)
        return self.groups * max(0, ceil(end / self.size) - len(row.tables[0]))

    def trim(self, row: Entry, room: int) -> None:
        fits = (len(row.tables[0]) + room // self.groups) * self.size - row.computed
        self.grant[row.name] = max(0, min(self.grant[row.name], fits))
        if self.grant[row.name] == 0:
            self.wait(row, ReasonCode.KV_SHORT)

    def take_blocks(self, row: Entry, num_blocks: int) -> None:
        for index in range(len(row.tables[0]), num_blocks):
            for group, table in enumerate(row.tables):
                table.append(self.pool.take())
                self.new_blocks.append((row, group, index, table[-1]))

    def admit(self, waiting: list[Entry], held: bool) -> None:
        """Section 4."""
        passed_over, overtaken = 0, list[Entry]()
        for place, q in enumerate(waiting):
            behind = any(q.key > self.live[name].key for name, *_ in self.step.preempted)
            if passed_over == self.config.max_num_seqs or behind:
                break
            if held and not (q.swapped and q.want == 1):
                for entry in waiting[place:]:
                    self.wait(entry, ReasonCode.PREFILL_CADENCE)
                break
            reason = self.reason_not_to_admit(q)
            if reason is None:
                for entry in overtaken if q in self.admitted else ():
                    entry.overtaken += 1
                if any(entry.overtaken == self.config.max_overtakes for entry in overtaken):
                    break
                continue
            self.wait(q, reason)
            if reason is ReasonCode.KV_SHORT and q.overtaken < self.config.max_overtakes:
                overtaken.append(q)
            elif reason not in PASSED_OVER:
                break
            passed_over += 1

    def reason_not_to_admit(self, q: Entry) -> ReasonCode | None:
        """Why ``q`` has to wait, or None if it was admitted (or ended)."""
        start = self.start_of(q)
        if not q.swapped and self.is_being_computed(q, start.count):
            return ReasonCode.PREFIX_IN_FLIGHT
        want = len(q.tokens) - start.computed
        is_long = self.capped and want > self.config.long_prefill_token_threshold
        if self.groups * self.gate(q) > self.cache.num_blocks:
            self.finish(q, FinishReason.KV_CAPACITY)
            return None
        displaced = self.make_room(q, start)
        if displaced is None:
            return ReasonCode.KV_SHORT if self.num_slots_left([]) > 0 else ReasonCode.SLOTS_FULL
        lower = [row for row in reversed(self.rows()) if self.gives_tokens(row, q)]
        giving = {row.name: self.grant[row.name] for row in lower + displaced if row.name in self.grant}
        tokens = self.left + sum(giving.values())
        long_tokens = self.long_left + sum(grant for name, grant in giving.items() if name in self.long)
        if not self.config.enable_chunked_prefill and want > tokens:
            return ReasonCode.BUDGET_SPENT
        grant = min(want, tokens)
        if is_long:
            grant = min(grant, self.config.long_prefill_token_threshold, long_tokens)
        if grant == 0:
            return ReasonCode.LONG_PREFILL_CAP if tokens > 0 else ReasonCode.BUDGET_SPENT
        self.pool.adopt(start.device.values())
        self.host.adopt(start.host.values() if not q.swapped else ())
        for row in displaced:
            self.spend(row, -self.grant.get(row.name, 0))
            self.preempt(row, "displaced")
        for row in lower:
            if is_long and row.name in self.long:
                self.give_up(row, grant - self.long_left)
        for row in lower:
            self.give_up(row, grant - self.left)
        if is_long:
            self.long.add(q.name)
        self.enter(q, start, grant)
        return None

    def gives_tokens(self, row: Entry, q: Entry) -> bool:
        """Whether the row's chunk yields to ``q``: of a less urgent class, or an equal one if ``q`` is swapped."""
        yields = row.key[0] > q.key[0] or (q.swapped and row.key[0] == q.key[0])
        return yields and row.want > 1 and row.name in self.grant and row not in self.admitted

    def is_being_computed(self, q: Entry, hit: int) -> bool:
        if not self.shares(q) or hit >= (len(q.tokens) - 1) // self.size:
            return False
        return any(
            row.published < row.known_at_admission // self.size
            and self.content(row, row.published) == self.content(q, hit)
            for row in self.rows()
            if self.shares(row) and self.goes_before(row, q)
        )

    def goes_before(self, row: Entry, q: Entry) -> bool:
        return row.key[0] <= q.key[0] if self.policy.name in ("longest_prefix", "fair") else row.key < q.key

    def give_up(self, row: Entry, missing: int) -> None:
        """Take up to ``missing`` tokens back from a row of this step."""
        given = min(missing, self.grant.get(row.name, 0))
        if given > 0:
            self.spend(row, -given)
            self.grant[row.name] -= given
            if self.grant[row.name] == 0:
                self.wait(row, ReasonCode.BUDGET_SPENT)

    def enter(self, q: Entry, start: Start, grant: int) -> None:
        taken = [entry.slot for entry in self.rows() + self.draining]
        q.slot = min(slot for slot in range(self.config.max_num_seqs) if slot not in taken)
        self.observe_start(q, start)
        q.computed, q.known_at_admission, q.protected = start.computed, len(q.tokens), q.ran
        q.published = min((index for _, index in start.host), default=start.count)
        for index in range(self.gate(q) if q.ran else ceil((q.computed + grant) / self.size)):
            for group, table in enumerate(q.tables):
                table.append(start.device.get((group, index)) or self.pool.take())
                if (group, index) in start.host:
                    self.step.swap_in.append((start.host[group, index], table[-1]))
        if q.swapped:
            self.leave_host(q)
        else:
            self.host_releases.append(start.host)
        self.policy.started(q)
        self.grant[q.name] = grant
        self.spend(q, grant)
        del self.step.reasons[q.name]
        self.admitted.append(q)

    def make_plan(self, held: bool) -> OracleStep:
        """Section 5."""
        step, running = self.step, [row for row in self.rows() if row not in self.admitted]
        self.served = [row for row in running if row.name in self.grant] + self.admitted
        for row in self.served:
            grant = self.grant[row.name]
            step.rows.append((row.name, row.slot, grant, row.computed, grant == row.want))
        step.admitted = [(q.name, q.slot, q.computed, [list(t) for t in q.tables], q.ran) for q in self.admitted]
        step.reasons = {name: reason for name, reason in step.reasons.items() if name in self.live}
        step.new_blocks = sorted((row.slot, *rest) for row, *rest in self.new_blocks if row in running)
        if self.served:
            step.released, self.released = sorted(self.released), []
            step.swap_out, self.copies_out = [(device, host) for host, device in self.copies_out.items()], {}
            prefill, since = any(row.want > 1 for row in self.served), self.steps_since_prefill
            self.steps_since_prefill = 0 if prefill else None if since is None else since + 1
        elif held:
            self.steps_since_prefill = None
        for row in self.served:
            row.computed += self.grant[row.name]
            row.in_flight = True
        return step
