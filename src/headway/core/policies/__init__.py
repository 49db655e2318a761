"""Scheduling policies: one small file each, chosen by name. A policy gives every request its fixed place."""

from __future__ import annotations

from headway.core.policies.base import OrderKey, Policy
from headway.core.policies.fcfs import FirstComeFirstServed
from headway.core.policies.priority import Priority

POLICIES: dict[str, type[Policy]] = {"fcfs": FirstComeFirstServed, "priority": Priority}


def make_policy(name: str) -> Policy:
    """The policy called ``name``; the configuration has checked that it exists."""
    return POLICIES[name]()


__all__ = ["POLICIES", "FirstComeFirstServed", "OrderKey", "Policy", "Priority", "make_policy"]
