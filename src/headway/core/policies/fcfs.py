"""First come, first served."""

from __future__ import annotations

from headway.core.policies.base import OrderKey, Policy
from headway.core.request import Request


class FirstComeFirstServed(Policy):
    """Order of arrival; nobody displaces anybody."""

    def order_key(self, request: Request) -> OrderKey:
        return (0, 0.0, request.handle)
