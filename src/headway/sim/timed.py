"""An executor on virtual time: it computes nothing, but every step takes as long as a latency model says.

Like :class:`~headway.sim.fake.FakeExecutor` it samples tokens that depend on the request and the place only; unlike
that it checks nothing, so a simulated hour passes in seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from headway.config import Checked, option
from headway.core.mixing import UInt64, mix64
from headway.core.plan import StepPlan, StepResult


class VirtualClock:
    """Time that goes on when somebody says so, in seconds from 0; call it to read it."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def advance_to(self, time_s: float) -> None:
        """Go on to ``time_s``; nothing happens if that is past."""
        self._now = max(self._now, time_s)


@dataclass(frozen=True)
class LatencyModel(Checked):
    """How long a step takes: a constant, and so much per token, per token attended to, per block copied."""

    step_s: float = option(help="Time of every step.", unit="seconds", minimum=0.0)
    token_s: float = option(help="Time per token computed.", unit="seconds", minimum=0.0)
    kv_token_s: float = option(
        0.0, help="Time per token of context, added up over the rows.", unit="seconds", minimum=0.0
    )
    copy_s: float = option(0.0, help="Time of every step that copies blocks.", unit="seconds", minimum=0.0)
    block_copy_s: float = option(0.0, help="Time per block copied, in either direction.", unit="seconds", minimum=0.0)

    def forward_time(self, plan: StepPlan) -> float:
        """Seconds that computing ``plan`` takes."""
        context = int((plan.starts + plan.num_scheduled).sum())
        return self.step_s + self.token_s * plan.num_tokens + self.kv_token_s * context

    def copy_time(self, plan: StepPlan) -> float:
        """Seconds that its copies take, before it is computed."""
        num_blocks = len(plan.swap_out) + len(plan.swap_in)
        return self.copy_s + self.block_copy_s * num_blocks if num_blocks else 0.0


class TimedExecutor:
    """Runs plans one after the other in virtual time; several may be in flight.

    Args:
        latency: how long a step takes.
        clock: is set to the end of a step when that is collected.
        vocab_size: sampled tokens are below this.
        seed: another seed, other tokens.

    Attributes:
        busy_s: seconds spent on steps so far, those in flight included.
    """

    def __init__(self, latency: LatencyModel, clock: VirtualClock, *, vocab_size: int = 32000, seed: int = 0) -> None:
        self._latency = latency
        self._clock = clock
        self._vocab_size = np.uint64(vocab_size)
        self._seed = mix64(np.array([seed], np.uint64))
        self._keys: UInt64 = np.zeros(0, np.uint64)
        """By slot: a hash of the request's handle."""
        self._pending: deque[tuple[float, StepResult]] = deque()
        self._free_at = 0.0
        self.busy_s = 0.0

    @property
    def num_in_flight(self) -> int:
        """Plans submitted and not collected."""
        return len(self._pending)

    def submit(self, plan: StepPlan) -> None:
        """Start ``plan`` when the one before it has ended."""
        for row in plan.admitted:
            if row.slot >= len(self._keys):
                self._keys = np.resize(self._keys, 2 * row.slot + 16)
            self._keys[row.slot] = mix64(np.array([row.handle], np.uint64) ^ self._seed)[0]
        copy_s, forward_s = self._latency.copy_time(plan), self._latency.forward_time(plan)
        self._free_at = max(self._free_at, self._clock()) + copy_s + forward_s
        self.busy_s += copy_s + forward_s
        self._pending.append((self._free_at, self._result(plan, forward_s, copy_s)))

    def collect(self) -> StepResult:
        """The result of the oldest plan in flight, at the time when it has ended; ``RuntimeError`` without one."""
        if not self._pending:
            raise RuntimeError("collect() without a plan in flight")
        ends_at, result = self._pending.popleft()
        self._clock.advance_to(ends_at)
        return result

    def _result(self, plan: StepPlan, forward_s: float, copy_s: float) -> StepResult:
        places = (plan.starts + plan.num_scheduled).astype(np.uint64)
        chosen = (mix64(self._keys[plan.slots] ^ mix64(places)) % self._vocab_size).astype(np.int32)
        tokens = np.where(plan.samples, chosen, np.int32(-1))[:, None]
        return StepResult(plan.step, tokens, plan.samples.astype(np.int32), forward_s=forward_s, copy_s=copy_s)
