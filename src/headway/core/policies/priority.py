"""Strict priority, order of arrival within one priority."""

from __future__ import annotations

from headway.core.policies.base import OrderKey, Policy
from headway.core.request import Request


class Priority(Policy):
    """The request's ``priority`` is its class: smaller numbers are served first and displace larger ones."""

    def order_key(self, request: Request) -> OrderKey:
        return (request.priority, 0.0, request.handle)
