"""Fair share between tenants by a virtual token counter (Sheng et al., "Fairness in Serving Large Language Models",
OSDI 2024, algorithm 2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from headway.core.plan import Int64
from headway.core.policies.base import OrderKey, Policy, PolicyView
from headway.core.request import Request

PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0
"""What one token of prompt or output counts, as in the paper."""


class FairShare(Policy):
    """The tenant that was served least goes first.

    Every tenant has a counter of the service it got: prompt tokens computed when a request starts, output tokens as
    they are delivered. A tenant that comes back after having had nothing in the queue is lifted to the least counter
    of those that wait, so being away saves up nothing. While two tenants both have requests waiting, their counters
    differ by at most ``max(PROMPT_WEIGHT * longest prompt, OUTPUT_WEIGHT * tokens that may run at a time)`` (lemma
    4.3 there), whatever either of them sends.
    """

    dynamic: ClassVar[bool] = True
    counts_tokens: ClassVar[bool] = True

    def __init__(self, ageing_s: float = 0.0) -> None:
        super().__init__(ageing_s)
        self.counters: dict[str, float] = {}
        self._last_served = ""

    def order_key(self, request: Request) -> OrderKey:
        return (0, self.counters.get(request.tenant, 0.0), request.handle)

    def rank(self, request: Request, view: PolicyView) -> float:
        return self.counters[request.tenant]

    def queued(self, request: Request, waiting: Iterable[Request]) -> None:
        tenants = {other.tenant: None for other in waiting}
        if request.tenant in tenants:
            return
        own = self.counters.get(request.tenant, 0.0)
        if tenants:
            least = min(self.counters[tenant] for tenant in tenants)
        else:
            least = self.counters.get(self._last_served, 0.0)
        self.counters[request.tenant] = max(own, least)

    def admitted(self, request: Request, num_computed: int, resumed: bool) -> None:
        self._last_served = request.tenant
        if not resumed:
            self.counters[request.tenant] += PROMPT_WEIGHT * (request.num_prompt_tokens - num_computed)

    def delivered(self, tenants: list[str], num_tokens: Int64) -> None:
        for tenant, tokens in zip(tenants, num_tokens.tolist(), strict=True):
            self.counters[tenant] += OUTPUT_WEIGHT * tokens
