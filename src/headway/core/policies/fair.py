"""Fair share between tenants by a virtual token counter (Sheng et al., "Fairness in Serving Large Language Models",
OSDI 2024, algorithm 2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
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
    differ by at most ``OUTPUT_WEIGHT * max_num_seqs * longest request``, whatever either of them sends (after lemma 4.3
    there; docs/design/memory.md says why).
    """

    dynamic: ClassVar[bool] = True
    counts_tokens: ClassVar[bool] = True

    def __init__(self, ageing_s: float = 0.0) -> None:
        super().__init__(ageing_s)
        self.counters: dict[str, float] = {}
        self._last_served = ""

    def order_key(self, request: Request) -> OrderKey:
        return (0, self.counters.get(request.tenant, 0.0), request.handle)

    def ranks(self, waiting: Sequence[Request], view: PolicyView) -> list[float]:
        """The tenant's counter when the requests of it that wait before this one have started: so several may start
        in one step, and still the least served tenant is next every time."""
        counters: dict[str, float] = {}
        ranks: dict[int, float] = {}
        for request in sorted(waiting, key=attrgetter("handle")):
            rank = ranks[request.handle] = counters.get(request.tenant, self.counters[request.tenant])
            charge = 0.0 if request.num_preemptions else PROMPT_WEIGHT * request.num_prompt_tokens
            counters[request.tenant] = rank + charge
        return [ranks[request.handle] for request in waiting]

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
