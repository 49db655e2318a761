"""What a policy is asked and told; it decides nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, Protocol

from headway.core.plan import Int64
from headway.core.request import Request

OrderKey = tuple[int, float, int]
"""(class, rank, handle), smaller first: only a smaller class may displace; the handle makes the order total."""


@dataclass(frozen=True)
class Hold:
    """A request that could be admitted has to wait all the same.

    Attributes:
        why: a sentence without its full stop.
        until_s: when it ends at the latest, on the clock of :attr:`PolicyView.now`. ``None`` if the policy cannot say:
            while nothing else is to be done it is then asked again and again, and nobody sleeps for longer than that.
    """

    why: str
    until_s: float | None = None

    def __post_init__(self) -> None:
        if self.until_s is not None and not isfinite(self.until_s):
            raise ValueError(f"until_s is {self.until_s}; a hold ends at a time, or it is not known when (None)")


class PolicyView(Protocol):
    """What a policy may look at when it judges waiting requests."""

    @property
    def now(self) -> float:
        """Time of the step, in seconds on the engine's clock."""

    def num_hit_tokens(self, request: Request) -> int:
        """Tokens that the request would find in the prefix cache now."""


class Policy(ABC):
    """Gives every request its place in the one order that queue, rows and victims share.

    A policy answers :meth:`order_key` when a request arrives; if it is *dynamic*, :meth:`ranks` for all waiting
    requests before a step admits; :meth:`holds` for a request that could be admitted; and, if it ranks victims,
    :meth:`victim_rank` for running ones when blocks are short. It is told what happened through :meth:`queued`,
    :meth:`admitted` and, if it counts tokens, :meth:`delivered`. A running request keeps the key it was admitted with.

    Args:
        ageing_s: the option of that name, in seconds; 0 means no ageing.

    Attributes:
        dynamic: whether ranks of waiting requests change. Costs time in proportion to the queue in every step.
        counts_tokens: whether it wants to be told of delivered tokens.
        ranks_victims: whether it chooses victims within a class.
        default_ageing_s: what ``ageing_s`` is if not given; ``None`` if the policy does not age requests at all.
    """

    dynamic: ClassVar[bool] = False
    counts_tokens: ClassVar[bool] = False
    ranks_victims: ClassVar[bool] = False
    default_ageing_s: ClassVar[float | None] = None

    def __init__(self, ageing_s: float = 0.0) -> None:
        self.ageing_s = ageing_s

    @property
    def uses_clock(self) -> bool:
        """Whether decisions depend on the time, as if requests age or are held; a trace then has to carry it."""
        return self.ageing_s > 0 or type(self).holds is not Policy.holds

    @abstractmethod
    def order_key(self, request: Request) -> OrderKey:
        """The key of a request that just arrived: its handle, arrival time and wishes are set."""

    def rank(self, request: Request, view: PolicyView) -> float:
        """The rank of a waiting request in this step."""
        return request.order_key[1]

    def ranks(self, waiting: Sequence[Request], view: PolicyView) -> list[float]:
        """The ranks of all waiting requests, for policies by which one changes the rank of another."""
        return [self.rank(request, view) for request in waiting]

    def holds(self, request: Request, view: PolicyView) -> Hold | None:
        """Why a request that could be admitted must wait all the same (it is passed over); ``None`` if it need not."""
        return None

    def victim_rank(self, request: Request, cost: float) -> float:
        """Who gives way first within a class, smaller first; ``cost`` is what preempting it is predicted to cost."""
        return cost

    def queued(self, request: Request, waiting: Iterable[Request]) -> None:  # noqa: B027
        """A new request is about to join the ``waiting`` ones."""

    def admitted(self, request: Request, num_computed: int, resumed: bool) -> None:  # noqa: B027
        """A request got a slot; ``num_computed`` of its tokens need no computing."""

    def delivered(self, tenants: list[str], num_tokens: Int64) -> None:  # noqa: B027
        """In this step the tenants' running requests delivered so many tokens; int64[len(tenants)]."""
