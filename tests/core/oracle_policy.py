"""Policies again, as docs/design/memory.md puts them: where a request stands, and what a tenant was served."""

from __future__ import annotations

from math import inf

from headway.config import SchedulerConfig
from tests.core.oracle_entry import Entry

SLO_S = {"interactive": 1.0, "standard": 10.0, "batch": 600.0}


class OraclePolicy:
    """Gives keys (class, rank, number); ``counters`` are those of the fair policy."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.name = config.scheduling_policy
        default = 30.0 if self.name in ("shortest", "longest_prefix") else 0.0
        self.ageing = default if config.ageing_s is None else config.ageing_s
        self.counters: dict[str, float] = {}
        self.last_started = ""

    def arrives(self, entry: Entry, waiting: list[Entry]) -> None:
        request, urgency, rank = entry.request, 0, 0.0
        if self.name == "priority":
            urgency = request.priority + (int(entry.arrival // self.ageing) if self.ageing else 0)
        elif self.name == "paying_first":
            urgency = 0 if request.tenant.startswith("paid-") else 1
        elif self.name == "shortest":
            rank = len(entry.tokens) + (entry.arrival // self.ageing * 2**20 if self.ageing else 0.0)
        elif self.name == "deadline":
            allowed = SLO_S.get(request.slo, inf) if request.deadline_s is None else request.deadline_s
            rank = entry.arrival + allowed
        elif self.name == "fair":
            self.joins(request.tenant, waiting)
        entry.key = (urgency, rank, entry.number)

    def joins(self, tenant: str, waiting: list[Entry]) -> None:
        """A tenant that had nothing in the queue is lifted to the least of those that have."""
        tenants = [entry.request.tenant for entry in waiting]
        if tenant not in tenants:
            least = min((self.counters[name] for name in tenants), default=self.counters.get(self.last_started, 0.0))
            self.counters[tenant] = max(self.counters.get(tenant, 0.0), least)

    def rerank(self, waiting: list[Entry], now: float, hits: dict[str, int]) -> None:
        """New ranks of all that wait. ``hits``: blocks that each would find on the device now."""
        ahead = dict(self.counters)
        for entry in sorted(waiting, key=lambda entry: entry.number):
            rank = entry.key[1]
            if self.name == "longest_prefix":
                rank = -inf if self.ageing and now - entry.arrival >= self.ageing else -hits[entry.name]
            elif self.name == "fair":
                rank = ahead[entry.request.tenant]
                ahead[entry.request.tenant] += 0 if entry.ran else len(entry.tokens)
            entry.key = (entry.key[0], rank, entry.number)

    def started(self, entry: Entry) -> None:
        self.last_started = entry.request.tenant
        if self.name == "fair" and not entry.ran:
            self.counters[entry.request.tenant] += len(entry.tokens) - entry.computed

    def delivered(self, entry: Entry) -> None:
        if self.name == "fair":
            self.counters[entry.request.tenant] += 2

    def victim_rank(self, entry: Entry, cost: float) -> float:
        return cost + entry.request.num_prompt_tokens / 1e6 if self.name == "paying_first" else cost
