"""Draws docs/design/states.md from the transition table of ``headway.core.request``; run by ``make docs``."""

from __future__ import annotations

from pathlib import Path

from headway.core.request import TRANSITIONS, FinishReason, Status

TARGET = Path(__file__).with_name("design") / "states.md"

STATE_NOTES = {
    Status.WAITING: "in the queue, in policy order; owns no slot and no blocks",
    Status.RUNNING: "owns a slot and blocks; its progress is in the scheduler's columns",
    Status.PREEMPTED: "lost slot and blocks, keeps its tokens and its place in policy order",
    Status.SWAPPED: "lost slot and blocks, its KV waits in host memory; comes back before new requests of its class",
    Status.FINISHED: "over; slot and blocks are kept while a step that touches them is in flight (draining)",
}
REASON_NOTES = {
    FinishReason.STOP: "an end-of-text token, a stop token or a stop string came",
    FinishReason.LENGTH: "`max_tokens` or the model length is reached",
    FinishReason.ABORT: "the client gave up",
    FinishReason.ERROR: "its computation failed; other requests go on",
    FinishReason.KV_CAPACITY: "it fills the whole KV memory and cannot grow; its tokens are delivered",
}


def render() -> str:
    """The document."""
    arrows = [
        f"    {before.name} --> {after.name}"
        for before in Status
        for after in sorted(TRANSITIONS[before], key=list(Status).index)
    ]
    ends = [f"    {status.name} --> [*]" for status in Status if not TRANSITIONS[status]]
    lines = [
        "# States of a request",
        "",
        "Drawn by `make docs` from `TRANSITIONS` in `src/headway/core/request.py`; any other move raises",
        "`IllegalTransition`.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        f"    [*] --> {Status.WAITING.name}",
        *arrows,
        *ends,
        "```",
        "",
        *(f"- **{status.name}**: {STATE_NOTES[status]}." for status in Status),
        "",
        "A finished request has one reason:",
        "",
        *(f"- `{reason.value}`: {REASON_NOTES[reason]}." for reason in FinishReason),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    TARGET.write_text(render())
