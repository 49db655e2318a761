"""What a preemption will cost, from what steps and copies were measured to cost.

The core owns no clock: the measurements come with the results of steps. All estimates forget slowly, so they follow
a machine that gets busier.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.plan import StepPlan, StepResult

FORGET = 0.05
"""Weight of a new measurement."""


@dataclass
class LinearFit:
    """Weighted least squares of y = a + b x with exponential forgetting, from five running means."""

    count: int = 0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def add(self, x: float, y: float) -> None:
        """Take in one measurement."""
        self.count += 1
        weight = max(FORGET, 1.0 / self.count)
        self.x += weight * (x - self.x)
        self.y += weight * (y - self.y)
        self.xx += weight * (x * x - self.xx)
        self.xy += weight * (x * y - self.xy)

    @property
    def slope(self) -> float:
        """Increase of y per unit of x; the mean ratio while all x were (nearly) equal, 0 before any measurement."""
        variance = self.xx - self.x * self.x
        if variance > 1e-6 * self.xx and self.xy > self.x * self.y:
            return (self.xy - self.x * self.y) / variance
        return self.y / self.x if self.x else 0.0


@dataclass(frozen=True)
class PreemptionCost:
    """Predicted seconds of device time that preempting a request would waste, by kind."""

    recompute_s: float
    swap_s: float


class CostModel:
    """Measured speed of prefill and of copies, and how much of a preempted prefix the cache gave back."""

    def __init__(self) -> None:
        self.forward = LinearFit()
        self.copy = LinearFit()
        self.survival = 0.5
        """Share of a preempted request's published tokens that its resume found in the prefix cache."""

    def observe_step(self, plan: StepPlan, result: StepResult) -> None:
        """Take in the times of a step, if they were measured."""
        if result.forward_s > 0:
            self.forward.add(plan.num_tokens, result.forward_s)
        copies = len(plan.swap_out) + len(plan.swap_in)
        if copies and result.copy_s > 0:
            self.copy.add(copies, result.copy_s)

    def observe_resume(self, num_published: int, num_hit: int) -> None:
        """A request preempted by recompute came back: how many of its published tokens were still there."""
        if num_published:
            self.survival += FORGET * (num_hit / num_published - self.survival)

    def predict(self, num_computed: int, num_published: int, num_blocks: int) -> PreemptionCost:
        """Cost of preempting a request.

        Args:
            num_computed: tokens with KV.
            num_published: those of them in full, published blocks, which the prefix cache may give back.
            num_blocks: blocks with content, in all groups; a swap copies each out and back.
        """
        lost = num_computed - self.survival * num_published
        return PreemptionCost(lost * self.forward.slope, 2 * num_blocks * self.copy.slope)
