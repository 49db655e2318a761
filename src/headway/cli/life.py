"""The life of one request, step by step in plain words, told from a replayed trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from headway.cli.replay import ReplayedStep
from headway.config import CacheConfig, SchedulerConfig
from headway.core.events import Admitted, Finished, Preempted, Queued
from headway.core.plan import StepPlan
from headway.core.reasons import ReasonCode, WaitReason
from headway.core.request import FinishReason
from headway.engine.explain import explain

ENDS = {
    FinishReason.STOP: "the model ended it, or a stop token was sampled",
    FinishReason.LENGTH: "it has all tokens it may have",
    FinishReason.ABORT: "its client gave it up",
    FinishReason.ERROR: "a step of it failed",
    FinishReason.KV_CAPACITY: "the KV memory cannot hold more of it",
}
ABORTS = {"stop": "a stop string was found in its text", "error": "its text could not be made"}
"""Ends that the engine asked for, where the scheduler only sees an abort."""


@dataclass
class Moment:
    """One thing that happened, or went on from step to step.

    Attributes:
        first, last: steps.
        text: a sentence.
        key: moments that follow each other with an equal key are one; ``None`` never is.
        count: how many were joined.
    """

    first: int
    last: int
    text: str
    key: tuple[object, ...] | None = None
    count: int = 1

    @property
    def steps(self) -> str:
        """Which steps, in words."""
        return f"step {self.first}" if self.first == self.last else f"steps {self.first} to {self.last}"


@dataclass
class Life:
    """What happened to the requests of one name, in order. A name may be used again when its request has ended."""

    request_id: str
    config: SchedulerConfig
    cache: CacheConfig
    moments: list[Moment] = field(default_factory=list)
    _handle: int = -1
    _slot: int | None = None
    _num_known: int = 0
    """Tokens known when it last got its slot."""
    _num_prompt: int = 0

    def follow(self, steps: Iterable[ReplayedStep]) -> None:
        """Take in a run."""
        for step in steps:
            for event in step.events:
                if event.request_id == self.request_id:
                    self._take_event(event, step)
            if step.plan is None:
                continue
            if self._slot is not None:
                self._take_row(step.plan)
            reason = step.reasons.get(self.request_id)
            if reason is not None:
                self._take_reason(step.plan.step, reason)

    def _add(self, step: int, text: str, key: tuple[object, ...] | None = None) -> None:
        last = self.moments[-1] if self.moments else None
        if last is not None and key is not None and last.key == key:
            last.last, last.text = step, text
            last.count += 1
        else:
            self.moments.append(Moment(step, step, text, key))

    # --- events --------------------------------------------------------------------------------------------

    def _take_event(self, event: Queued | Admitted | Preempted | Finished, step: ReplayedStep) -> None:
        if isinstance(event, Queued):
            self._handle, self._slot, self._num_prompt = event.handle, None, event.num_prompt_tokens
            self._add(event.step, f"Arrives with a prompt of {_tokens(event.num_prompt_tokens)}.")
        elif isinstance(event, Admitted):
            self._slot = event.slot
            row = next(row for row in step.plan.admitted if row.handle == event.handle) if step.plan else None
            self._num_known = len(row.tokens) if row is not None else 0
            self._add(event.step, self._admitted(event))
        elif isinstance(event, Preempted):
            self._slot = None
            self._add(event.step, _preempted(event))
        else:
            self._slot = None
            why = ABORTS.get(step.aborts.get(event.handle, ""), ENDS[event.reason])
            message = f" ({event.message})" if event.message else ""
            times = f", preempted {_times(event.num_preemptions)}" if event.num_preemptions else ""
            self._add(event.step, f"Ends with {_tokens(event.num_output_tokens)} of output{times}: {why}{message}.")

    def _admitted(self, event: Admitted) -> str:
        parts = []
        if event.num_cached_tokens:
            parts.append(f"{_tokens(event.num_cached_tokens)} found in the prefix cache")
        if event.num_restored_tokens:
            parts.append(f"{_tokens(event.num_restored_tokens)} copied back from the host")
        rest = self._num_known - event.num_cached_tokens - event.num_restored_tokens
        again = f", {event.num_recomputed_tokens:,} of them a second time" if event.num_recomputed_tokens else ""
        parts.append(f"{_tokens(rest)} to compute{again}")
        return f"{'Comes back' if event.resumed else 'Starts'} in slot {event.slot}: {', '.join(parts)}."

    # --- steps ---------------------------------------------------------------------------------------------

    def _take_row(self, plan: StepPlan) -> None:
        """What the step computes of it."""
        for row in np.flatnonzero(plan.slots == self._slot).tolist():
            start, num_tokens = int(plan.starts[row]), int(plan.num_scheduled[row])
            if start >= self._num_known:
                decoded = 1 + (self.moments[-1].count if self.moments[-1].key == ("decode",) else 0)
                self._add(plan.step, f"Decodes: {_tokens(decoded)}.", ("decode",))
                continue
            whole = "its prompt" if self._num_known == self._num_prompt else "its prompt and output so far"
            place = _place(start, start + num_tokens, self._num_known)
            sampled = "; samples a token" if plan.samples[row] else ""
            self._add(plan.step, f"Computes {_tokens(num_tokens)} of {whole} ({place}){sampled}.")

    def _take_reason(self, step: int, reason: WaitReason) -> None:
        """Why it was not served; that it was preempted is told already."""
        if reason.code is ReasonCode.PREEMPTED:
            return
        runs = self._slot is not None
        told = explain(reason, self.config, self.cache, runs=runs)
        begin = "Is left out" if runs else "Waits"
        self._add(
            step,
            f"{begin}: {told.title}. {told.text} {told.release}",
            ("wait", reason.code, reason.by, reason.why, runs),
        )


def _preempted(event: Preempted) -> str:
    by = f"request {event.by}" if event.by else "another request"
    why = f"{by} is more urgent" if event.cause == "displaced" else f"{by} needs KV blocks to grow"
    if event.kind == "swap":
        what = f"its KV is kept on the host, {_count(event.num_copied_blocks, 'block')} copied"
    else:
        what = f"the KV of its {_tokens(event.num_lost_tokens)} is given up, as far as nobody else needs it"
    cost = ""
    if event.predicted_recompute_s or event.predicted_swap_s:
        cost = f" Predicted cost: {_milliseconds(event.predicted_recompute_s)} to compute again"
        cost += f", {_milliseconds(event.predicted_swap_s)} to swap." if event.predicted_swap_s else "."
    return f"Is preempted ({event.kind}) because {why}: {what}.{cost}"


def _place(start: int, end: int, whole: int) -> str:
    """Which tokens, counted from 1, of how many."""
    if end - start == whole:
        return "all at once"
    if end - start == 1:
        return f"the last of {whole:,}" if end == whole else f"number {end:,} of {whole:,}"
    return f"{start + 1:,} to {end:,} of {whole:,}"


def _tokens(number: int) -> str:
    return _count(number, "token")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"
