"""What each preemption was predicted to cost and what it did cost, in seconds of device time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from headway.core.events import Admitted, Preempted
from headway.core.plan import StepPlan, StepResult

KINDS = ("recompute", "swap")
NUM_RECORDS = 1000
"""Preemptions that are remembered one by one."""


class PreemptionRecord(NamedTuple):
    """One preemption whose request came back.

    Attributes:
        step, resumed_step: when it went and when it came back.
        kind: "recompute" or "swap".
        predicted_recompute_s, predicted_swap_s: what either kind was predicted to cost; 0 while nothing was measured.
        real_s: what it did cost. Recompute: tokens computed again, at the speed measured when it came back. Swap: its
            share of the time that the two steps spent copying.
        num_recomputed_tokens, num_restored_tokens: tokens computed again, and copied back.
        num_copied_blocks: blocks copied out.
    """

    request_id: str
    step: int
    resumed_step: int
    kind: str
    predicted_recompute_s: float
    predicted_swap_s: float
    real_s: float
    num_recomputed_tokens: int
    num_restored_tokens: int
    num_copied_blocks: int

    @property
    def predicted_s(self) -> float:
        """What the kind that was chosen was predicted to cost."""
        return self.predicted_swap_s if self.kind == "swap" else self.predicted_recompute_s


@dataclass
class _Open:
    """A preempted request that has not come back, or whose step back has not returned."""

    event: Preempted
    copied_s: float = 0.0
    copied: bool = False
    admitted: Admitted | None = None


class PreemptionCosts:
    """Follows preempted requests until they are back.

    Protocol, in the order in which things happen: :meth:`preempted`, :meth:`admitted`, :meth:`ended` for events,
    :meth:`observe` for every result.

    Attributes:
        records: the last ones.
        predicted_s, real_s: by kind, sums over all records.
    """

    def __init__(self) -> None:
        self.records: deque[PreemptionRecord] = deque(maxlen=NUM_RECORDS)
        self.predicted_s = dict.fromkeys(KINDS, 0.0)
        self.real_s = dict.fromkeys(KINDS, 0.0)
        self._open: dict[int, _Open] = {}
        self._restored: dict[int, int] = {}
        """step -> tokens that it copies back, for preempted requests and for new ones that find them on the host."""

    def preempted(self, event: Preempted) -> None:
        """A request lost its slot."""
        self._open[event.handle] = _Open(event)

    def admitted(self, event: Admitted) -> None:
        """A request got a slot."""
        if event.num_restored_tokens:
            self._restored[event.step] = self._restored.get(event.step, 0) + event.num_restored_tokens
        if event.handle in self._open:
            self._open[event.handle].admitted = event

    def ended(self, handle: int) -> None:
        """A request ended; if it was away, nobody will know what that would have cost."""
        self._open.pop(handle, None)

    def observe(self, plan: StepPlan, result: StepResult, seconds_per_token: float) -> None:
        """A step returned.

        Args:
            plan, result: the step.
            seconds_per_token: as measured up to now.
        """
        num_restored = self._restored.pop(plan.step, 0)
        if not self._open:
            return
        copies = len(plan.swap_out) + len(plan.swap_in)
        per_block_s = result.copy_s / copies if copies else 0.0
        back = [
            (away, away.admitted)
            for away in self._open.values()
            if away.admitted is not None and away.admitted.step == plan.step
        ]
        for away in self._open.values():
            # A plan without rows leaves its copies to the next one that has some.
            if not away.copied and away.event.step <= plan.step:
                away.copied = True
                away.copied_s += away.event.num_copied_blocks * per_block_s
        for away, admitted in back:
            if away.event.kind == "recompute":
                real_s = admitted.num_recomputed_tokens * seconds_per_token
            else:
                share = admitted.num_restored_tokens / num_restored if num_restored else 0.0
                real_s = away.copied_s + share * len(plan.swap_in) * per_block_s
            self._close(away.event, admitted, real_s)

    def _close(self, event: Preempted, admitted: Admitted, real_s: float) -> None:
        record = PreemptionRecord(
            event.request_id,
            event.step,
            admitted.step,
            event.kind,
            event.predicted_recompute_s,
            event.predicted_swap_s,
            real_s,
            admitted.num_recomputed_tokens,
            admitted.num_restored_tokens,
            event.num_copied_blocks,
        )
        self.records.append(record)
        self.predicted_s[record.kind] += record.predicted_s
        self.real_s[record.kind] += real_s
        del self._open[event.handle]
