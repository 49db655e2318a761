"""What the oracle moves around: blocks in a pool, requests, and what a step decided."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from headway.core.request import Request

# A block is known by salt and all tokens up to its end.
Content = tuple[str, tuple[int, ...]]
# Of either tier: (cache group, index in the table) -> block.
Places = dict[tuple[int, int], int]


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

    def adopt(self, blocks: Iterable[int]) -> None:
        """Hold blocks that have content."""
        for block in blocks:
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

    def num_unheld(self, blocks: Iterable[int], given_back: list[int]) -> int:
        """How many of ``blocks`` nobody would hold if these references were given back."""
        return sum(self.references.get(block, 0) == given_back.count(block) for block in blocks)


@dataclass(eq=False)
class Entry:
    """A request, waiting (no slot; swapped or not), running, or draining (done, but with a slot)."""

    request: Request
    number: int
    arrival: float
    tokens: list[int]
    tables: list[list[int]]
    key: tuple[int, float, int] = (0, 0.0, 0)
    slot: int | None = None
    computed: int = 0  # of a swapped request: what the host keeps of it
    published: int = 0
    known_at_admission: int = 0
    ran: bool = False
    protected: bool = False
    in_flight: bool = False
    done: bool = False
    swapped: bool = False
    host: Places = field(default_factory=dict)
    overtaken: int = 0
    published_before: int = 0

    @property
    def name(self) -> str:
        return self.request.request_id

    @property
    def queue_key(self) -> tuple[int, bool, float, int]:
        return (self.key[0], not self.swapped, *self.key[1:])

    @property
    def want(self) -> int:
        return len(self.tokens) - self.computed

    def blocks(self) -> list[int]:
        """Last index first, group by group within an index: the order to give them back."""
        return [table[index] for index in reversed(range(len(self.tables[0]))) for table in self.tables]


@dataclass
class Start:
    """What a waiting request would start from."""

    count: int
    computed: int
    device: Places
    host: Places


@dataclass
class OracleStep:
    """What a step decided, in plain numbers; the tests bring a StepPlan into the same form."""

    rows: list[tuple[str, int, int, int, bool]] = field(default_factory=list)  # name, slot, grant, start, samples
    admitted: list[tuple[str, int, int, list[list[int]], bool]] = field(default_factory=list)
    new_blocks: list[tuple[int, int, int, int]] = field(default_factory=list)  # slot, group, index, block
    released: list[int] = field(default_factory=list)
    swap_out: list[tuple[int, int]] = field(default_factory=list)  # device block, host block
    swap_in: list[tuple[int, int]] = field(default_factory=list)  # host block, device block
    reasons: dict[str, str] = field(default_factory=dict)
    preempted: list[tuple[str, str, str]] = field(default_factory=list)  # name, cause, kind
