"""Reasons for waiting in words, in one place: debug interface, logs, the page and command line all say it like this.

docs/operations.md explains each reason with what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from headway.config import CacheConfig, SchedulerConfig
from headway.core.inspection import Inspection
from headway.core.reasons import ReasonCode, WaitReason
from headway.core.request import Status

MAX_BLOCKERS = 3
"""So many requests are named at most."""

TITLES: Mapping[ReasonCode, str] = {
    ReasonCode.QUEUE_POSITION: "behind others in the queue",
    ReasonCode.SLOTS_FULL: "all slots taken",
    ReasonCode.KV_SHORT: "not enough KV blocks",
    ReasonCode.BUDGET_SPENT: "token budget spent",
    ReasonCode.LONG_PREFILL_CAP: "share of long prompts spent",
    ReasonCode.PREFIX_IN_FLIGHT: "its prefix is being computed",
    ReasonCode.PREFILL_CADENCE: "between prefill steps",
    ReasonCode.POLICY_HOLD: "held back by the policy",
    ReasonCode.IN_FLIGHT: "its step has not returned",
    ReasonCode.PREEMPTED: "just preempted",
    ReasonCode.ADMISSION_FAULT: "admission broke off",
}
"""Each reason in a few words."""

STATES: Mapping[Status, str] = {
    Status.WAITING: "has not started",
    Status.RUNNING: "runs",
    Status.PREEMPTED: "was preempted and starts again",
    Status.SWAPPED: "was preempted, its KV is on the host",
    Status.FINISHED: "has ended",
}
"""Each state of a request as the rest of a sentence about it."""


@dataclass(frozen=True)
class Explanation:
    """A reason for people.

    Attributes:
        title: in a few words.
        text: a sentence with its numbers.
        release: a sentence on what ends the wait.
    """

    title: str
    text: str
    release: str


@dataclass(frozen=True)
class _Case:
    reason: WaitReason
    config: SchedulerConfig
    cache: CacheConfig
    runs: bool
    now: float | None

    @property
    def other(self) -> str:
        """The request it waits for, as a part of a sentence."""
        return f"request {self.reason.by}" if self.reason.by else "another request"


def explain(
    reason: WaitReason,
    config: SchedulerConfig,
    cache: CacheConfig,
    *,
    runs: bool = False,
    now: float | None = None,
) -> Explanation:
    """Put a reason into words.

    Args:
        reason: what the scheduler said.
        config, cache: the limits it speaks of.
        runs: whether the request is in a slot, so that it is only a step that it was left out of.
        now: the time on the scheduler's clock, for reasons that end at a time.
    """
    text, release = _SENTENCES[reason.code](_Case(reason, config, cache, runs, now))
    return Explanation(TITLES[reason.code], text, release)


def blockers(reason: WaitReason, seen: Inspection) -> tuple[str, ...]:
    """The requests that stand in the way, the most important first; at most ``MAX_BLOCKERS``."""
    if reason.by:
        return (reason.by,)
    rows = seen.rows
    if reason.code is ReasonCode.QUEUE_POSITION and reason.need and seen.waiting:
        return (seen.waiting[0].request_id,)
    if reason.code is ReasonCode.SLOTS_FULL:  # those that end first at the latest
        return _names(seen, rows.end_len - rows.known)
    if reason.code is ReasonCode.KV_SHORT:  # those that hold most
        return _names(seen, -rows.held)
    if reason.code in (ReasonCode.BUDGET_SPENT, ReasonCode.LONG_PREFILL_CAP):  # those that have most of a prompt to do
        left = rows.known - rows.computed
        return tuple(name for name in _names(seen, -left) if left[rows.request_ids.index(name)] > 1)
    return ()


def describe_waiting(counts: Mapping[ReasonCode, int]) -> str:
    """Who waits for what, for a line of a log: "3 not enough KV blocks, 1 all slots taken"; empty if nobody waits."""
    return ", ".join(f"{count} {TITLES[code]}" for code, count in counts.items() if count)


def _names(seen: Inspection, rank: np.typing.NDArray[np.int32]) -> tuple[str, ...]:
    """The rows with the smallest ranks; of equals, those before in policy order."""
    order = np.argsort(rank, kind="stable")[:MAX_BLOCKERS]
    return tuple(seen.rows.request_ids[row] for row in order.tolist())


def counted(number: int, what: str) -> str:
    """A number with what it counts: "1 step", "2 steps"."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _queue_position(case: _Case) -> tuple[str, str]:
    ahead = case.reason.need
    if not ahead:
        return "It is first in the queue, but no step has looked at it yet.", "The next step looks at it."
    return (
        f"{counted(ahead, 'request')} {'is' if ahead == 1 else 'are'} before it in the queue.",
        "Those before it start, or are passed over.",
    )


def _slots_full(case: _Case) -> tuple[str, str]:
    return (
        f"All {counted(case.config.max_num_seqs, 'slot')} (max_num_seqs) are taken.",
        "A running request ends, or is preempted.",
    )


def _kv_short(case: _Case) -> tuple[str, str]:
    reason = case.reason
    if case.runs:
        return (
            "There was no free KV block for its next tokens, and nobody behind it could give way.",
            "A block becomes free: another request ends, or a step in flight returns.",
        )
    if not reason.need:
        return (
            "KV blocks were short for the running requests in the last step, so nobody was let in.",
            "The running requests find their blocks, and there are enough left for it.",
        )
    text = f"To start it needs {counted(reason.need, 'free KV block')}, and there {_are(reason.free)}."
    if reason.by:
        text += f" Most of what is kept back is for request {reason.by}."
    missing = max(reason.need - reason.free, 1)
    become = "becomes" if missing == 1 else "become"
    return text, f"{counted(missing, 'more block')} {become} free: running requests end, or are preempted."


def _are(free: int) -> str:
    return "is none" if not free else f"{'is' if free == 1 else 'are'} {free:,}"


def _budget_spent(case: _Case) -> tuple[str, str]:
    budget = f"The step's budget of {counted(case.config.max_num_batched_tokens, 'token')}"
    if case.config.enable_chunked_prefill:
        return f"{budget} went to requests before it.", "The next step has a new budget."
    return f"{budget} had no room for its whole prompt.", "A step has room for all of it; prompts are not cut."


def _long_prefill_cap(case: _Case) -> tuple[str, str]:
    threshold = counted(case.config.long_prefill_token_threshold, "token")
    return (
        f"Its prompt is long (over {threshold}), and long prompts before it took the share that all of them have.",
        "Those before it get on, or its rest is no longer long.",
    )


def _prefix_in_flight(case: _Case) -> tuple[str, str]:
    return (
        f"Its prompt begins like that of {case.other}, which is computing the next shared block now.",
        f"{_first_upper(case.other)} has computed the block; then this one starts from it instead of computing it too.",
    )


def _prefill_cadence(case: _Case) -> tuple[str, str]:
    interval = case.config.prefill_schedule_interval
    return (
        f"While others decode, only one step in {interval:,} carries prompts (prefill_schedule_interval).",
        f"The interval passes: {counted(interval - 1, 'step')} at most.",
    )


def _policy_hold(case: _Case) -> tuple[str, str]:
    why = f": {case.reason.why}" if case.reason.why else ""
    until_s = case.reason.until_s
    when = (
        f", in {max(0.0, until_s - case.now):.3g} s at the latest"
        if until_s is not None and case.now is not None
        else ""
    )
    return f"The policy {case.config.scheduling_policy} holds it back{why}.", f"The policy lets it go{when}."


def _in_flight(case: _Case) -> tuple[str, str]:
    return "All it may still compute is in a step that has not returned.", "That step returns."


def _preempted(case: _Case) -> tuple[str, str]:
    return (
        f"In the last step it gave its slot and its KV blocks to {case.other}.",
        "From the next step on it waits for room like others, before those that came later.",
    )


def _admission_fault(case: _Case) -> tuple[str, str]:
    return (
        "The last step stopped letting requests in after an internal error, which is in the log.",
        "The next step goes on, without the request at which it happened.",
    )


def _first_upper(text: str) -> str:
    return text[0].upper() + text[1:]


_SENTENCES: Mapping[ReasonCode, Callable[[_Case], tuple[str, str]]] = {
    ReasonCode.QUEUE_POSITION: _queue_position,
    ReasonCode.SLOTS_FULL: _slots_full,
    ReasonCode.KV_SHORT: _kv_short,
    ReasonCode.BUDGET_SPENT: _budget_spent,
    ReasonCode.LONG_PREFILL_CAP: _long_prefill_cap,
    ReasonCode.PREFIX_IN_FLIGHT: _prefix_in_flight,
    ReasonCode.PREFILL_CADENCE: _prefill_cadence,
    ReasonCode.POLICY_HOLD: _policy_hold,
    ReasonCode.IN_FLIGHT: _in_flight,
    ReasonCode.PREEMPTED: _preempted,
    ReasonCode.ADMISSION_FAULT: _admission_fault,
}
