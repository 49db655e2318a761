"""Shortest prompt first, with a bound on how long a long one can be overtaken."""

from __future__ import annotations

from typing import ClassVar

from headway.core.policies.base import OrderKey, Policy
from headway.core.request import Request

TOKEN_SCALE = 1 << 20
"""No prompt is longer than this many tokens."""


class ShortestPromptFirst(Policy):
    """Orders by prompt length those that arrive within the same span of ``ageing_s`` seconds; earlier spans come first.

    So nobody is overtaken by a request that arrived ``ageing_s`` or more after it, however short that is. A charge that
    grows with every second instead would have to outweigh the longest prompt after ``ageing_s``, and then outweighs
    common differences of length at once.
    """

    default_ageing_s: ClassVar[float | None] = 30.0

    def order_key(self, request: Request) -> OrderKey:
        span = request.arrival_s // self.ageing_s if self.ageing_s else 0.0
        return (0, span * TOKEN_SCALE + request.num_prompt_tokens, request.handle)
