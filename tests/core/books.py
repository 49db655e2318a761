"""What tests know of requests and blocks from outside, by following plans, outputs and events."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.core.request import Request

# What a block holds: cache group, salt, and all tokens up to the last one with KV in it.
Content = tuple[int, str, list[int]]


@dataclass(eq=False)
class Book:
    """What is known of one request from outside."""

    request: Request
    tokens: list[int]
    end_length: int
    slot: int | None = None
    tables: list[list[int]] = field(default_factory=list)
    computed: int = 0
    inflight: int = 0
    placeholders: int = 0
    steps_inflight: int = 0
    ran: bool = False
    swapped: bool = False
    lost: int = 0
    saved: int = 0
    overtaken: int = 0
    protected: bool = False
    done: bool = False

    @property
    def name(self) -> str:
        return self.request.request_id

    @property
    def key(self) -> tuple[int, float, int]:
        """Its place in policy order; fixed while it has a slot."""
        return self.request.order_key

    @property
    def queue_key(self) -> tuple[int, bool, float, int]:
        """Its place in the queue: swapped requests first within a class."""
        return (self.key[0], not self.swapped, *self.key[1:])

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
            f"{f' swapped={self.saved}' if self.swapped else ''}"
            f"{' protected' if self.protected else ''}{' done' if self.done else ''})"
        )


@dataclass
class Before:
    """The state a step found; ``waiting`` in the order of the queue."""

    rows: list[Book]
    waiting: list[Book]
    decodes: list[Book]
    flying: list[Book]
    protected: list[Book]
