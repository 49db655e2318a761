"""The scheduler, pure: no I/O, no clock, no threads, no torch."""

from headway.core.events import Admitted, Event, Finished, Preempted, Queued, StepOutput
from headway.core.plan import AdmittedRow, NewBlocks, StepPlan, StepResult
from headway.core.policies import Hold, Policy, register_policy
from headway.core.reasons import ReasonCode, WaitReason
from headway.core.request import FinishReason, IllegalTransition, Request, RequestRefused, Status
from headway.core.scheduler import Scheduler

__all__ = [
    "Admitted",
    "AdmittedRow",
    "Event",
    "FinishReason",
    "Finished",
    "Hold",
    "IllegalTransition",
    "NewBlocks",
    "Policy",
    "Preempted",
    "Queued",
    "ReasonCode",
    "Request",
    "RequestRefused",
    "Scheduler",
    "Status",
    "StepOutput",
    "StepPlan",
    "StepResult",
    "WaitReason",
    "register_policy",
]
