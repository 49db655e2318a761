"""The cost model: what it measures, what it predicts, and that trying against a prediction stays cheap."""

from __future__ import annotations

import numpy as np
import pytest

from headway.core.cost import TRIAL_SHARE, CostModel, LinearFit, PreemptionCost
from headway.core.plan import StepPlan, StepResult


def step(tokens: list[int], copies: int = 0) -> StepPlan:
    """A plan with rows of so many tokens."""
    none = np.zeros(0, np.int32)
    count = np.array(tokens, np.int32)
    pairs = np.ones((copies, 2), np.int32)
    samples = np.ones(len(count), np.bool_)
    return StepPlan(1, np.arange(len(count), dtype=np.int32), count, 0 * count, samples, (), (), none, swap_out=pairs)


def took(forward_s: float, copy_s: float = 0.0) -> StepResult:
    none = np.zeros(0, np.int32)
    return StepResult(1, none, none, forward_s=forward_s, copy_s=copy_s)


def test_a_line_is_found() -> None:
    fit = LinearFit()
    for x in (10, 60, 30, 90, 20):
        fit.add(x, 5.0 + 0.5 * x)

    assert (fit.slope, fit.intercept) == (pytest.approx(0.5), pytest.approx(5.0))


def test_without_spread_the_ratio_is_the_slope() -> None:
    fit = LinearFit()
    assert (fit.slope, fit.intercept) == (0.0, 0.0)
    for _ in range(3):
        fit.add(10, 5.0)

    assert (fit.slope, fit.intercept) == (pytest.approx(0.5), pytest.approx(0.0))


def test_a_falling_line_is_not_believed() -> None:
    fit = LinearFit()
    for x in (10, 60, 30):
        fit.add(x, 100.0 - x)

    assert fit.slope == pytest.approx(fit.y / fit.x)
    assert fit.intercept == 0.0


def test_a_machine_that_gets_slower_is_followed() -> None:
    fit = LinearFit()
    for speed in (1.0, 3.0):
        for number in range(100):
            fit.add(10 + number % 50, speed * (10 + number % 50))

    assert fit.slope == pytest.approx(3.0, rel=0.05)


def test_decodes_do_not_blur_the_speed_of_prefill() -> None:
    cost = CostModel()
    for tokens in (100, 200, 300):
        cost.observe_step(step([tokens, 1, 1]), took(1.0 + 0.01 * (tokens + 2)))
    for number in range(500):  # slower and slower, as contexts grow
        cost.observe_step(step([1] * (40 - number // 50)), took(2.0 + 0.01 * number))

    assert cost.predict(50, 0, 4).recompute_s == pytest.approx(0.5)


def test_a_swap_costs_latency_and_bandwidth_both_ways() -> None:
    cost = CostModel()
    for copies in (4, 20, 9):
        cost.observe_step(step([5], copies), took(1.0, 0.03 + 0.002 * copies))
    cost.observe_step(step([5]), took(1.0))

    assert cost.predict(50, 0, 10).swap_s == pytest.approx(2 * (0.03 + 0.02))


def test_what_the_cache_gives_back_costs_nothing() -> None:
    cost = CostModel()
    cost.observe_step(step([100]), took(1.0))
    for _ in range(300):
        cost.observe_resume(64, 48)

    assert cost.survival == pytest.approx(0.75)
    assert cost.predict(100, 64, 7).recompute_s == pytest.approx(1.0 - 0.48)
    cost.observe_resume(0, 0)
    assert cost.survival == pytest.approx(0.75)


def test_the_first_choice_is_a_swap_because_nothing_was_measured() -> None:
    cost = CostModel()
    assert cost.prefers_swap(PreemptionCost(0.0, 0.0))
    cost.observe_step(step([5], 4), took(1.0, 0.5))

    assert not cost.prefers_swap(PreemptionCost(1.0, 1.0))
    assert cost.prefers_swap(PreemptionCost(1.0, 0.9))


def test_one_slow_copy_is_not_believed_for_ever() -> None:
    cost = CostModel()
    cost.observe_step(step([5], 4), took(1.0, 100.0))
    slow = PreemptionCost(1.0, 50.0)
    choices = [cost.prefers_swap(slow) for _ in range(5000)]

    assert 3 < sum(choices) < 8
    extra_s = sum(choices) * (slow.swap_s - slow.recompute_s)
    assert extra_s <= TRIAL_SHARE * choices.count(False) * slow.recompute_s
    for _ in range(60):  # what the trials measure
        cost.observe_step(step([5], 4), took(1.0, 0.004))
    assert cost.copy.slope < 0.1 * 25


def test_a_swap_that_is_cheap_to_try_is_tried_soon() -> None:
    cost = CostModel()
    cost.observe_step(step([5], 4), took(1.0, 1.0))
    large, small = PreemptionCost(1.0, 2.0), PreemptionCost(0.02, 0.04)

    assert not cost.prefers_swap(large)
    assert cost.prefers_swap(small)
    assert not cost.prefers_swap(small)
