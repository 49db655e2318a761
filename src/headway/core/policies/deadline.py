"""Earliest deadline first (Liu and Layland, 1973)."""

from __future__ import annotations

import math

from headway.core.policies.base import OrderKey, Policy
from headway.core.request import Request

SLO_CLASSES: dict[str, float] = {"interactive": 1.0, "standard": 10.0, "batch": 600.0}
"""Seconds after arrival by which a request of a class should have its first token."""


class EarliestDeadlineFirst(Policy):
    """Orders by arrival plus the request's ``deadline_s``, or its ``slo`` class; those without either come last."""

    @property
    def uses_clock(self) -> bool:
        return True

    def order_key(self, request: Request) -> OrderKey:
        allowed = request.deadline_s
        if allowed is None:
            allowed = SLO_CLASSES.get(request.slo, math.inf)
        return (0, request.arrival_s + allowed, request.handle)
