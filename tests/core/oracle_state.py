"""What the oracle of tests/core/oracle.py works on, and everything but its ``schedule``: requests come and go, results
come back. Lists and dicts, one request and one block at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from math import ceil

from headway.config import CacheConfig, SchedulerConfig
from headway.core.request import FinishReason, Request

# A block is known by salt and all tokens up to its end.
Content = tuple[str, tuple[int, ...]]


class OraclePool:
    """Blocks 1..N: free ones without content on a stack, free ones with content in the order they were freed."""

    def __init__(self, num_blocks: int) -> None:
        self.stack = list(range(num_blocks, 0, -1))
        self.cached_free: OrderedDict[int, None] = OrderedDict()
        self.references: dict[int, int] = {}
        self.index: dict[tuple[int, Content], int] = {}
        self.entry: dict[int, tuple[int, Content]] = {}

    @property
    def num_free(self) -> int:
        return len(self.stack) + len(self.cached_free)

    def take(self) -> int:
        """The block without content that was freed last, else the one with content that was freed longest ago."""
        if self.stack:
            block = self.stack.pop()
        else:
            block, _ = self.cached_free.popitem(last=False)
            del self.index[self.entry.pop(block)]
        self.references[block] = 1
        return block

    def adopt(self, block: int) -> None:
        """Hold a block that has content."""
        self.cached_free.pop(block, None)
        self.references[block] = self.references.get(block, 0) + 1

    def free(self, blocks: list[int]) -> None:
        """Give back one reference each; the first of the list is the first to be used again."""
        without_content = []
        for block in blocks:
            self.references[block] -= 1
            if self.references[block] == 0:
                del self.references[block]
                if block in self.entry:
                    self.cached_free[block] = None
                else:
                    without_content.append(block)
        self.stack.extend(reversed(without_content))

    def publish(self, group: int, content: Content, block: int) -> None:
        """Make a held block findable; the first block with a content stays."""
        if (group, content) not in self.index:
            self.index[group, content] = block
            self.entry[block] = (group, content)

    def num_freed_by(self, given_back: list[int]) -> int:
        """Blocks that would become free if these references were given back."""
        left = dict(self.references)
        for block in given_back:
            left[block] -= 1
        return sum(count == 0 for count in left.values())


@dataclass(eq=False)
class Entry:
    """A request, waiting (no slot), running, or draining (done, but with a slot)."""

    request: Request
    key: tuple[int, int]
    tokens: list[int]
    tables: list[list[int]]
    slot: int | None = None
    computed: int = 0
    published: int = 0
    known_at_admission: int = 0
    ran: bool = False
    protected: bool = False
    in_flight: bool = False
    done: bool = False

    @property
    def name(self) -> str:
        return self.request.request_id

    @property
    def want(self) -> int:
        return len(self.tokens) - self.computed

    def blocks(self) -> list[int]:
        """Last index first, group by group within an index: the order to give them back."""
        return [table[index] for index in reversed(range(len(self.tables[0]))) for table in self.tables]


@dataclass
class OracleStep:
    """What a step decided, in plain numbers; the tests bring a StepPlan into the same form."""

    rows: list[tuple[str, int, int, int, bool]] = field(default_factory=list)  # name, slot, grant, start, samples
    admitted: list[tuple[str, int, int, list[list[int]], bool]] = field(default_factory=list)
    new_blocks: list[tuple[int, int, int, int]] = field(default_factory=list)  # slot, group, index, block
    released: list[int] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    preempted: list[tuple[str, str]] = field(default_factory=list)  # name, cause


class OracleState:
    """Requests, blocks and counters of the oracle."""

    def __init__(self, config: SchedulerConfig, cache: CacheConfig) -> None:
        self.config, self.cache = config, cache
        self.groups, self.size = cache.num_groups, cache.block_size
        self.pool = OraclePool(cache.num_blocks)
        self.live: dict[str, Entry] = {}
        self.draining: list[Entry] = []
        self.served: list[Entry] = []
        self.released: list[int] = []
        self.finished: list[tuple[str, str, list[int]]] = []
        self.num_added = 0
        self.steps_since_prefill: int | None = None

    def add(self, request: Request) -> bool:
        """Whether the request was taken."""
        prompt = request.tokens.tolist()
        if not 0 < len(prompt) < self.config.max_model_len or request.request_id in self.live:
            return False
        if self.groups * ceil((len(prompt) + 1) / self.size) > self.cache.num_blocks:
            return False
        self.num_added += 1
        urgency = request.priority if self.config.scheduling_policy == "priority" else 0
        self.live[request.request_id] = Entry(
            request, (urgency, self.num_added), prompt, [[] for _ in range(self.groups)]
        )
        return True

    def abort(self, name: str) -> None:
        if name in self.live:
            self.finish(self.live[name], FinishReason.ABORT)

    def finish(self, entry: Entry, reason: FinishReason) -> None:
        self.finished.append((entry.name, reason.value, list(entry.tokens)))
        del self.live[entry.name]
        entry.done = True
        if entry.in_flight:
            self.draining.append(entry)
        elif entry.slot is not None:
            self.leave_slot(entry)

    def leave_slot(self, entry: Entry) -> None:
        assert entry.slot is not None
        self.pool.free(entry.blocks())
        self.released.append(entry.slot)
        entry.slot, entry.tables = None, [[] for _ in entry.tables]

    def rows(self) -> list[Entry]:
        return sorted((entry for entry in self.live.values() if entry.slot is not None), key=lambda entry: entry.key)

    def content(self, entry: Entry, index: int) -> Content:
        return entry.request.cache_salt, tuple(entry.tokens[: (index + 1) * self.size])

    def shares(self, entry: Entry) -> bool:
        return self.cache.enable_prefix_caching and entry.request.sampling.prompt_logprobs is None

    def update(self, sampled: list[int | None], failed: set[int]) -> list[tuple[str, int]]:
        """Take in one token (or None) per row of the plan; what is delivered."""
        served, self.served = self.served, []
        delivered, ended = [], []
        for row in served:
            row.in_flight = False
            if row.done:
                self.draining.remove(row)
                self.leave_slot(row)
        for number, row in enumerate(served):
            if number in failed and not row.done:
                self.finish(row, FinishReason.ERROR)
        for row, token in zip(served, sampled, strict=True):
            if not row.done and token is not None:
                row.tokens.append(token)
                row.protected = False
                delivered.append((row.name, token))
                ended += [(row, reason) for reason in self.reasons_to_stop(row)[:1]]
        for row in served:
            while not row.done and self.shares(row) and row.published < row.computed // self.size:
                for group, table in enumerate(row.tables):
                    self.pool.publish(group, self.content(row, row.published), table[row.published])
                row.published += 1
        for row, reason in ended:
            self.finish(row, reason)
        return delivered

    def reasons_to_stop(self, row: Entry) -> list[FinishReason]:
        sampling, token = row.request.sampling, row.tokens[-1]
        num_outputs = len(row.tokens) - row.request.num_prompt_tokens
        reasons = []
        if num_outputs >= sampling.min_tokens:
            if token in row.request.eos_token_ids and not sampling.ignore_eos:
                reasons.append(FinishReason.STOP)
            if token in sampling.stop_token_ids:
                reasons.append(FinishReason.STOP)
        if num_outputs == sampling.max_tokens or len(row.tokens) == self.config.max_model_len:
            reasons.append(FinishReason.LENGTH)
        return reasons
