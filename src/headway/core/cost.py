"""What a preemption will cost, from what steps and copies were measured to cost.

The core owns no clock: the measurements come with the results of steps. All estimates forget slowly, so they follow
a machine that gets busier.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.plan import StepPlan, StepResult

FORGET = 0.05
"""Weight of a new measurement."""

TRIAL_SHARE = 0.05
"""Share of the cost of recomputing that may be spent on swaps against the prediction, to measure copies again."""


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

    @property
    def intercept(self) -> float:
        """What y is at x = 0, at least 0."""
        return max(0.0, self.y - self.slope * self.x)


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
        self._spent_s = 0.0
        """Predicted cost of recomputing where that was chosen, since the last copy."""

    def observe_step(self, plan: StepPlan, result: StepResult) -> None:
        """Take in the times of a step, if they were measured.

        Steps that only decode say nothing about prefill: they all have nearly the same number of tokens, and enough of
        them would make the others forgotten.
        """
        if result.forward_s > 0 and (plan.num_tokens > plan.num_rows or not self.forward.count):
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
        one_way_s = self.copy.intercept + num_blocks * self.copy.slope
        return PreemptionCost(lost * self.forward.slope, 2 * one_way_s)

    def prefers_swap(self, cost: PreemptionCost) -> bool:
        """Whether to swap: if that is predicted to be cheaper, or no copy was measured yet.

        Copies that are avoided are not measured either, so one slow copy could be believed for ever. Therefore one is
        made against the prediction as soon as its extra cost is at most ``TRIAL_SHARE`` of what recomputing has cost
        since the last copy: that much is lost at most by trying.
        """
        extra_s = cost.swap_s - cost.recompute_s
        if extra_s < 0 or not self.copy.count or extra_s < TRIAL_SHARE * self._spent_s:
            self._spent_s = 0.0
            return True
        self._spent_s += cost.recompute_s
        return False
