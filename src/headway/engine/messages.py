"""What goes into the engine's thread and what comes out of it: plain records, so that it could as well be a process.

Requests are known by *serials*, numbers that the sender of a :class:`Submit` gives and never gives again. So whatever
comes late, an abort, a deadline or an update, concerns the request that was meant or nobody: names may be used again.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.engine.engine import Prepared
from headway.engine.outputs import RequestUpdate


@dataclass(frozen=True)
class Submit:
    """Enter these requests, each with its serial."""

    entries: tuple[tuple[int, Prepared], ...]


@dataclass(frozen=True)
class Abort:
    """End these requests wherever they are; serials of ended ones are ignored."""

    serials: tuple[int, ...]


@dataclass(frozen=True)
class Expire:
    """End these requests if none of them has begun; their error is then of kind "timeout"."""

    serials: tuple[int, ...]


@dataclass(frozen=True)
class Look:
    """Make a snapshot; it comes as a message of its own."""


@dataclass(frozen=True)
class Stop:
    """Do no more steps and close the engine."""


Order = Submit | Abort | Expire | Look | Stop


@dataclass(frozen=True)
class StepMessage:
    """All that one step has to tell; there is one per step, not one per token.

    Attributes:
        first: serials of requests whose first token was sampled in this step, though its text may come later.
        updates: for the clients, with serials, in order. Every submitted request gets exactly one with an output, its
            last.
    """

    first: tuple[int, ...]
    updates: tuple[tuple[int, RequestUpdate], ...]


@dataclass(frozen=True)
class Death:
    """The engine cannot go on; nothing else follows."""

    error: BaseException


@dataclass(frozen=True)
class Heartbeat:
    """The last sign of life of the engine's thread, on the clock it was given, in seconds.

    Attributes:
        at_s: when it was given: after every step, and whenever the thread wakes up or falls asleep.
        busy: whether there was something to do from then on, which there is not while the policy holds all requests
            back. A busy thread that gives no more signs is stuck.
        num_steps: steps done.
        step_s: when the last step ended; ``None`` before the first.
    """

    at_s: float
    busy: bool
    num_steps: int
    step_s: float | None
