"""Why a live request was not served in a step: one closed list, read by metrics, logs, pages and traces."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ReasonCode(enum.Enum):
    """The reasons, each with what ends it."""

    QUEUE_POSITION = "queue_position"  # requests before it are admitted or passed over first
    SLOTS_FULL = "slots_full"  # a running request ends
    KV_SHORT = "kv_short"  # enough blocks become free
    BUDGET_SPENT = "budget_spent"  # the next step has a new token budget
    LONG_PREFILL_CAP = "long_prefill_cap"  # long prompts before it finish their share
    PREFIX_IN_FLIGHT = "prefix_in_flight"  # the row computing its next block publishes it
    PREFILL_CADENCE = "prefill_cadence"  # the interval between prefill steps has passed
    POLICY_HOLD = "policy_hold"  # the policy lets it go
    IN_FLIGHT = "in_flight"  # the step in flight returns
    PREEMPTED = "preempted"  # from the next step on it waits like others
    ADMISSION_FAULT = "admission_fault"  # the next step, without the request at which admission broke off


@dataclass(frozen=True)
class WaitReason:
    """Why a request waits.

    Attributes:
        code: the reason.
        step: the step that gave it.
        need: blocks it would need (``kv_short``), or its place in the queue, from 0 (``queue_position``).
        free: blocks that were free (``kv_short``).
        by: the request it waits for or was preempted for, if there is one.
        why: the policy's sentence (``policy_hold``).
        until_s: when the policy lets it go, on the clock of the step, if it says so (``policy_hold``).
    """

    code: ReasonCode
    step: int
    need: int = 0
    free: int = 0
    by: str = ""
    why: str = ""
    until_s: float | None = None
