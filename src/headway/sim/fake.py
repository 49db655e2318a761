"""An executor without a model: it computes nothing and checks everything.

Instead of keys and values it writes a *tag* to each place of the KV memory: a hash of the tokens up to there. Whenever
a row computes a token, all places of its block table up to that token must hold exactly the tags of that row's own
tokens. A block that is shared wrongly, given to a second request too early, published before it was written, or missing
is therefore noticed in the very step that would have read it.

The sampled token is a hash of the whole sequence, so the outputs of a request depend on nothing but its prompt: not on
batching, chunks, prefix hits or preemption.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headway.core.mixing import UInt64, mix64
from headway.core.plan import AdmittedRow, Bool, Int32, Int64, StepPlan, StepResult

_MISSING = -1


class PlanViolation(RuntimeError):
    """A plan breaks the contract of ``core/plan.py``: a bug in whoever made it."""


class KVCorruption(PlanViolation):
    """A row would read KV that is not its own prefix.

    Attributes:
        slot, position: whose token, at which place of its sequence.
        group, block: cache group and physical block (-1: the table has no block there).
    """

    def __init__(self, step: int, row: int, slot: int, position: int, group: int, block: int, why: str) -> None:
        where = f"step {step}, row {row} (slot {slot}), position {position}, group {group}, block {block}"
        super().__init__(f"{where}: {why}")
        self.row = row
        self.slot = slot
        self.position = position
        self.group = group
        self.block = block


class FakeExecutor:
    """Runs plans in the order of submission; results wait until they are collected, so several may be in flight.

    Args:
        block_size: tokens in one KV block.
        vocab_size: sampled tokens are below this.
        seed: another seed, other outputs.
        delay_s: ``collect`` takes this long, in seconds.
        fail: called with every plan; the rows it names fail with its messages, as if their computation had failed.
        sleep: how to wait.

    Raises (in ``submit``):
        KVCorruption: see above.
        PlanViolation: the plan is malformed.
    """

    def __init__(
        self,
        *,
        block_size: int,
        vocab_size: int = 32000,
        seed: int = 0,
        delay_s: float = 0.0,
        fail: Callable[[StepPlan], Mapping[int, str]] | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self._seed = mix64(np.array([seed], np.uint64))
        self._delay_s = delay_s
        self._fail = fail
        self._sleep = sleep
        self._results: deque[StepResult] = deque()
        self._collected_step = 0
        # By slot. ``prefix[s, p]`` is the sum of the hashes of (token, place) up to place p.
        self._prefix: UInt64 = np.zeros((0, 0), np.uint64)
        self._num_tokens: Int64 = np.zeros(0, np.int64)
        self._handles: Int64 = np.zeros(0, np.int64)
        self._broken: Bool = np.zeros(0, np.bool_)
        self._tables: list[Int32] = []
        # By block.
        self._tags: UInt64 = np.zeros((0, block_size), np.uint64)
        self._writer: Int64 = np.zeros(0, np.int64)
        self._touched_step: Int64 = np.zeros(0, np.int64)
        self._written_step: Int64 = np.zeros(0, np.int64)
        # By host block.
        self._host_tags: UInt64 = np.zeros((0, block_size), np.uint64)

    @property
    def num_in_flight(self) -> int:
        """Plans submitted and not collected."""
        return len(self._results)

    def submit(self, plan: StepPlan) -> None:
        """Run ``plan``."""
        self._copy(plan)
        self._follow(plan)
        self._check_rows(plan)
        broken = np.flatnonzero(self._broken[plan.slots])
        failed = {int(row): "an earlier step of this request failed" for row in broken}
        failed.update(self._fail(plan) if self._fail else {})
        alive = np.ones(plan.num_rows, np.bool_)
        alive[list(failed)] = False
        self._broken[plan.slots[~alive]] = True
        rows = np.flatnonzero(alive)
        for group in range(len(self._tables)):
            self._write(plan, rows, group)
        for group in range(len(self._tables)):
            self._verify(plan, rows, group)
        tokens, counts = self._sample(plan, alive)
        self._results.append(StepResult(plan.step, tokens, counts, failed=failed))

    def collect(self) -> StepResult:
        """The result of the oldest plan in flight."""
        if not self._results:
            raise PlanViolation("collect() without a plan in flight")
        if self._delay_s:
            self._sleep(self._delay_s)
        result = self._results.popleft()
        self._collected_step = result.step
        return result

    def _copy(self, plan: StepPlan) -> None:
        """Swap blocks out, then in. Steps in flight may still run: they may read what is copied out, nothing else."""
        out, back = plan.swap_out, plan.swap_in
        if not len(out) and not len(back):
            return
        num_blocks = 1 + max(out[:, 0].max(initial=0), back[:, 1].max(initial=0))
        self._grow_blocks(num_blocks)
        self._host_tags = grow(
            self._host_tags, 1 + max(out[:, 1].max(initial=0), back[:, 0].max(initial=0)), self.block_size
        )
        device = np.concatenate([out[:, 0], back[:, 1]])
        if min(device.min(), out[:, 1].min(initial=1), back[:, 0].min(initial=1)) < 1:
            raise PlanViolation(f"step {plan.step} copies the null block")
        if len(np.unique(out[:, 1])) < len(out) or len(np.unique(back[:, 1])) < len(back):
            raise PlanViolation(f"step {plan.step} copies two blocks to one place")
        last_use = np.concatenate([self._written_step[out[:, 0]], self._touched_step[back[:, 1]]])
        busy = last_use > self._collected_step
        if busy.any():
            raise PlanViolation(f"step {plan.step} copies block {device[busy][0]}, which a step in flight uses")
        self._host_tags[out[:, 1]] = self._tags[out[:, 0]]
        self._tags[back[:, 1]] = self._host_tags[back[:, 0]]

    def _follow(self, plan: StepPlan) -> None:
        """Bring the state of the slots up to date."""
        if plan.num_rows == 0:
            raise PlanViolation(f"step {plan.step} has no rows")
        while len(self._tables) < len(plan.new_blocks):
            self._tables.append(np.zeros((len(self._num_tokens), 0), np.int32))
        for slot in plan.released:
            if slot >= len(self._handles) or not self._handles[slot]:
                raise PlanViolation(f"step {plan.step} releases slot {slot}, which is empty")
            self._handles[slot] = 0
        for row in plan.admitted:
            self._admit(plan.step, row)
        for group, new in enumerate(plan.new_blocks):
            if not len(new.slots):
                continue
            table = self._tables[group] = grow(
                self._tables[group], len(self._num_tokens), new.index.max() + 1, fill=_MISSING
            )
            if (table[new.slots, new.index] != _MISSING).any():
                raise PlanViolation(f"step {plan.step}, group {group}: a new block replaces one in the table")
            table[new.slots, new.index] = new.block_ids
        num_blocks = 1 + max((int(table.max(initial=0)) for table in self._tables), default=0)
        self._grow_blocks(num_blocks)

    def _grow_blocks(self, num_blocks: int) -> None:
        self._tags = grow(self._tags, num_blocks, self.block_size)
        self._writer = grow(self._writer, num_blocks)
        self._touched_step = grow(self._touched_step, num_blocks)
        self._written_step = grow(self._written_step, num_blocks)

    def _admit(self, step: int, row: AdmittedRow) -> None:
        slot, num_tokens = row.slot, len(row.tokens)
        num_slots = slot + 1
        self._num_tokens = grow(self._num_tokens, num_slots)
        self._handles = grow(self._handles, num_slots)
        self._broken = grow(self._broken, num_slots)
        self._prefix = grow(self._prefix, num_slots, num_tokens)
        if self._handles[slot]:
            raise PlanViolation(f"step {step} admits {row.request_id!r} to slot {slot}, which is taken")
        if len(row.block_ids) != len(self._tables):
            raise PlanViolation(f"step {step}: {row.request_id!r} has {len(row.block_ids)} block tables")
        self._handles[slot] = row.handle
        self._broken[slot] = False
        self._num_tokens[slot] = num_tokens
        places = np.arange(num_tokens, dtype=np.uint64)
        self._prefix[slot, :num_tokens] = np.cumsum(self._term(row.tokens, places), dtype=np.uint64)
        for group, block_ids in enumerate(row.block_ids):
            table = grow(self._tables[group], num_slots, len(block_ids), fill=_MISSING)
            table[slot] = _MISSING
            table[slot, : len(block_ids)] = block_ids
            self._tables[group] = table

    def _check_rows(self, plan: StepPlan) -> None:
        """The rows must be there, once each, and run only tokens that are known."""
        slots = plan.slots
        if len(np.unique(slots)) != len(slots):
            raise PlanViolation(f"step {plan.step} runs a slot twice: {slots.tolist()}")
        if slots.min() < 0 or slots.max() >= len(self._handles) or not self._handles[slots].all():
            raise PlanViolation(f"step {plan.step} runs an empty slot: {slots.tolist()}")
        if plan.num_scheduled.min() < 1:
            raise PlanViolation(f"step {plan.step} has a row without tokens")
        ends = plan.starts + plan.num_scheduled
        known = self._num_tokens[slots]
        if (ends > known).any():
            row = int(np.argmax(ends > known))
            raise PlanViolation(f"step {plan.step}, row {row} runs up to {ends[row]} of {known[row]} known tokens")
        if not np.array_equal(plan.samples, ends == known):
            raise PlanViolation(f"step {plan.step}: a row must sample exactly if it runs its last known token")

    def _write(self, plan: StepPlan, rows: Int64, group: int) -> None:
        """Write the tags of the tokens this step computes."""
        row, position, block = self._places(plan, rows, plan.starts[rows], group)
        handles = self._handles[plan.slots[row]]
        in_flight = (self._touched_step[block] > self._collected_step) & (self._writer[block] != handles)
        self._refuse(plan, group, row, position, block, block <= 0, "there is no block to write to")
        self._refuse(plan, group, row, position, block, in_flight, "another request's step in flight uses the block")
        self._writer[block] = handles
        self._written_step[block] = plan.step
        self._tags[block, position % self.block_size] = self._tag(plan.slots[row], position, group)

    def _verify(self, plan: StepPlan, rows: Int64, group: int) -> None:
        """Everything up to the last token of each row must be that row's own prefix."""
        row, position, block = self._places(plan, rows, np.zeros(len(rows), np.int32), group)
        self._refuse(plan, group, row, position, block, block <= 0, "there is no block to read from")
        found = self._tags[block, position % self.block_size]
        wrong = found != self._tag(plan.slots[row], position, group)
        self._refuse(plan, group, row, position, block, wrong, "the KV found there is not of this row's prefix")
        self._touched_step[block] = plan.step

    def _places(self, plan: StepPlan, rows: Int64, starts: Int32, group: int) -> tuple[Int64, Int64, Int32]:
        """Plan row, position and block of each token from ``starts`` to the end of what each of ``rows`` computes."""
        counts = plan.starts[rows] + plan.num_scheduled[rows] - starts
        row = np.repeat(rows, counts)
        position = np.arange(len(row)) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
        table = self._tables[group]
        index = position // self.block_size
        block = np.full(len(row), _MISSING, np.int32)
        inside = index < table.shape[1]
        block[inside] = table[plan.slots[row[inside]], index[inside]]
        return row, position, block

    def _refuse(
        self, plan: StepPlan, group: int, row: Int64, position: Int64, block: Int32, wrong: Bool, why: str
    ) -> None:
        if wrong.any():
            first = int(np.argmax(wrong))
            slot = int(plan.slots[row[first]])
            raise KVCorruption(plan.step, int(row[first]), slot, int(position[first]), group, int(block[first]), why)

    def _sample(self, plan: StepPlan, alive: Bool) -> tuple[Int32, Int32]:
        """Choose and append the next token of each row that samples."""
        tokens = np.full((plan.num_rows, 1), -1, np.int32)
        rows = np.flatnonzero(plan.samples & alive)
        slots = plan.slots[rows]
        place = self._num_tokens[slots]
        chosen = (mix64(self._prefix[slots, place - 1] ^ self._seed) % np.uint64(self.vocab_size)).astype(np.int32)
        width = int(place.max(initial=0)) + 1
        self._prefix = grow(self._prefix, len(self._num_tokens), width)
        self._prefix[slots, place] = self._prefix[slots, place - 1] + self._term(chosen, place.astype(np.uint64))
        # A failed row counts its token as well: the plans in flight behind it already reckon with it.
        self._num_tokens[plan.slots[plan.samples]] += 1
        tokens[rows, 0] = chosen
        return tokens, (plan.samples & alive).astype(np.int32)

    def _term(self, tokens: Int32, places: UInt64) -> UInt64:
        return mix64(mix64(places) ^ tokens.astype(np.uint64))

    def _tag(self, slots: Int32, positions: Int64, group: int) -> UInt64:
        return mix64(self._prefix[slots, positions] + np.uint64(group))


def grow(array: Any, *shape: int, fill: int = 0) -> Any:
    """``array``, enlarged to hold at least ``shape``; at least doubled where it must grow, so growing stays rare."""
    if all(have >= want for have, want in zip(array.shape, shape, strict=True)):
        return array
    wider = [have if have >= want else max(want, 2 * have) for have, want in zip(array.shape, shape, strict=True)]
    grown = np.full(wider, fill, array.dtype)
    grown[tuple(slice(size) for size in array.shape)] = array
    return grown
