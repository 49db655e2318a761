"""What a policy is asked."""

from __future__ import annotations

from abc import ABC, abstractmethod

from headway.core.request import Request

OrderKey = tuple[int, float, int]
"""(class, rank, handle), smaller first: only a smaller class may displace; the handle makes the order total."""


class Policy(ABC):
    """Gives a request its place in the one order that queue, rows and victims share."""

    @abstractmethod
    def order_key(self, request: Request) -> OrderKey:
        """The key of a request that just arrived and has its handle; it never changes afterwards."""
