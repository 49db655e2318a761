"""Longest cached prefix first (SGLang, Zheng et al. 2024, section 3), with a bound on waiting."""

from __future__ import annotations

import math
from typing import ClassVar

from headway.core.policies.base import OrderKey, Policy, PolicyView
from headway.core.request import Request


class LongestPrefixFirst(Policy):
    """Serves first what costs least to compute because most of it is cached.

    Requests that waited ``ageing_s`` seconds or more come before all others, in order of arrival. Requests that share
    a prefix nobody has computed yet are held back by the step itself while the first of them computes it
    (docs/design/step.md, rule 4.2).
    """

    dynamic: ClassVar[bool] = True
    default_ageing_s: ClassVar[float | None] = 30.0

    def order_key(self, request: Request) -> OrderKey:
        return (0, 0.0, request.handle)

    def rank(self, request: Request, view: PolicyView) -> float:
        if self.ageing_s and view.now - request.arrival_s >= self.ageing_s:
            return -math.inf
        return -float(view.num_hit_tokens(request))
