"""Strict priority, order of arrival within one priority; optionally ageing."""

from __future__ import annotations

from typing import ClassVar

from headway.core.policies.base import OrderKey, Policy
from headway.core.request import Request


class Priority(Policy):
    """The request's ``priority`` is its class: smaller numbers are served first and displace larger ones.

    With ageing, every ``ageing_s`` seconds of waiting make a request one step more urgent. All requests age alike, so
    this needs no clock in the order: later arrivals start one step less urgent per ``ageing_s`` instead.
    """

    default_ageing_s: ClassVar[float | None] = 0.0

    def order_key(self, request: Request) -> OrderKey:
        late = int(request.arrival_s // self.ageing_s) if self.ageing_s else 0
        return (request.priority + late, 0.0, request.handle)
