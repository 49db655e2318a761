"""A scheduling policy of your own in twenty lines: paying customers first, whoever paid gives way last."""

from __future__ import annotations

from typing import ClassVar

from headway.core import Policy, Request, register_policy


class PayingFirst(Policy):
    """Two classes of urgency; within a class the cheapest victim gives way, shorter prompts before longer ones."""

    ranks_victims: ClassVar[bool] = True

    def order_key(self, request: Request) -> tuple[int, float, int]:
        return (0 if request.tenant.startswith("paid-") else 1, 0.0, request.handle)

    def victim_rank(self, request: Request, cost: float) -> float:
        return cost + request.num_prompt_tokens / 1e6


register_policy("paying_first", PayingFirst)
