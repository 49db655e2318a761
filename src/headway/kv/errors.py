"""Errors of the KV layer."""

from __future__ import annotations


class OutOfBlocks(RuntimeError):
    """More blocks were asked for than are free; nothing was taken.

    Attributes:
        need: blocks asked for.
        free: blocks that are free.
    """

    def __init__(self, need: int, free: int) -> None:
        super().__init__(f"{need} KV blocks needed, {free} free")
        self.need = need
        self.free = free


class InvariantViolation(AssertionError):
    """A conservation law does not hold: a bug in this program, never in its input."""
