"""Times on the device's own time line: a GPU runs behind the host that queues its work."""

from __future__ import annotations

import time

import torch

Moment = float | torch.cuda.Event
"""Seconds of the host's clock; on a GPU, an event that passes when everything queued before it is done."""


def moment(device: torch.device) -> Moment:
    """Now, or, on a GPU, when what was queued up to now is done."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(start: Moment, end: Moment) -> float:
    """Seconds from ``start`` to ``end``; waits until both have passed."""
    if isinstance(start, float) or isinstance(end, float):
        return float(end) - float(start)  # type: ignore[arg-type]
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
