"""Whether the engine lives, judged by its heartbeat alone: no question is put to the engine's thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.engine.messages import Heartbeat


@dataclass(frozen=True)
class Health:
    """The state at one moment.

    Attributes:
        status: "ok", "draining", "frozen" (busy, and no step has ended for too long) or "dead".
        busy: whether the engine has something to do.
        silent_s: since its last sign of life.
        step_age_s: since the last step ended; ``None`` before the first.
        num_steps: steps done.
    """

    status: str
    busy: bool
    silent_s: float
    step_age_s: float | None
    num_steps: int

    @property
    def live(self) -> bool:
        """Whether the process is worth keeping: a supervisor restarts it if not."""
        return self.status in ("ok", "draining")

    @property
    def ready(self) -> bool:
        """Whether new work should be sent here."""
        return self.status == "ok"

    def body(self) -> dict[str, Any]:
        """For the answer."""
        return {
            "status": self.status,
            "live": self.live,
            "ready": self.ready,
            "busy": self.busy,
            "last_step_age_s": None if self.step_age_s is None else round(self.step_age_s, 3),
            "silent_s": round(self.silent_s, 3),
            "steps": self.num_steps,
        }


def judge(heartbeat: Heartbeat, now: float, *, stall_timeout_s: float, dead: bool, draining: bool) -> Health:
    """Read the heartbeat at ``now``, on its clock.

    An idle engine is silent for as long as it likes. A busy one gives a sign after every step, so a long silence means
    that a step does not end.
    """
    silent_s = max(0.0, now - heartbeat.at_s)
    if dead:
        status = "dead"
    elif heartbeat.busy and silent_s > stall_timeout_s:
        status = "frozen"
    else:
        status = "draining" if draining else "ok"
    step_age_s = None if heartbeat.step_s is None else max(0.0, now - heartbeat.step_s)
    return Health(status, heartbeat.busy, silent_s, step_age_s, heartbeat.num_steps)
