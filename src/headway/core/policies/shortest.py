"""Shortest prompt first, with a bound on how long a long one can be overtaken."""

from __future__ import annotations

from typing import ClassVar

from headway.core.policies.base import OrderKey, Policy
from headway.core.request import Request

TOKEN_SCALE = 1 << 20
"""No prompt is longer than this many tokens."""


class ShortestPromptFirst(Policy):
    """Orders by prompt length, plus a charge for arriving late.

    The charge reaches ``TOKEN_SCALE`` tokens after ``ageing_s`` seconds, so nobody is overtaken by a request that
    arrived ``ageing_s`` or more after it, however short that is.
    """

    default_ageing_s: ClassVar[float | None] = 30.0

    def order_key(self, request: Request) -> OrderKey:
        late = request.arrival_s / self.ageing_s * TOKEN_SCALE if self.ageing_s else 0.0
        return (0, request.num_prompt_tokens + late, request.handle)
