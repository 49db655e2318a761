"""Scheduling policies: one small file each, chosen by name; :func:`register_policy` adds one of your own."""

from __future__ import annotations

from headway.config import ConfigError, SchedulerConfig
from headway.core.policies.base import Hold, OrderKey, Policy, PolicyView
from headway.core.policies.cache_aware import LongestPrefixFirst
from headway.core.policies.deadline import SLO_CLASSES, EarliestDeadlineFirst
from headway.core.policies.fair import FairShare
from headway.core.policies.fcfs import FirstComeFirstServed
from headway.core.policies.priority import Priority
from headway.core.policies.shortest import ShortestPromptFirst

POLICIES: dict[str, type[Policy]] = {
    "fcfs": FirstComeFirstServed,
    "priority": Priority,
    "shortest": ShortestPromptFirst,
    "longest_prefix": LongestPrefixFirst,
    "deadline": EarliestDeadlineFirst,
    "fair": FairShare,
}


def register_policy(name: str, policy: type[Policy]) -> None:
    """Make a policy available under a new name; raises ``ValueError`` if the name is taken by another."""
    if POLICIES.setdefault(name, policy) is not policy:
        raise ValueError(f"there is a scheduling policy called {name!r} already")


def make_policy(config: SchedulerConfig) -> Policy:
    """The policy that the options name.

    Raises:
        ConfigError: there is none of that name, or it has no use for ``ageing_s``.
    """
    policy = POLICIES.get(config.scheduling_policy)
    if policy is None:
        known = ", ".join(POLICIES)
        raise ConfigError("scheduling_policy", config.scheduling_policy, f"must be one of {known}")
    if policy.default_ageing_s is None:
        if config.ageing_s is not None:
            raise ConfigError("ageing_s", config.ageing_s, f"has no effect with policy {config.scheduling_policy}")
        return policy()
    return policy(policy.default_ageing_s if config.ageing_s is None else config.ageing_s)


__all__ = [
    "POLICIES",
    "SLO_CLASSES",
    "EarliestDeadlineFirst",
    "FairShare",
    "FirstComeFirstServed",
    "Hold",
    "LongestPrefixFirst",
    "OrderKey",
    "Policy",
    "PolicyView",
    "Priority",
    "ShortestPromptFirst",
    "make_policy",
    "register_policy",
]
