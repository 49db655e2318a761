"""Looking into a server whose engine is held in the middle of a step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tests.server.running import PATIENCE_S, Gate, Running

Seen = TypeVar("Seen")


def between_steps(server: Running, gate: Gate, ask: Callable[[], Seen]) -> Seen:
    """Ask something of a snapshot, and let one step pass, after which it can be made."""
    server.service.engine.snapshot_age_s = -1.0
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        server.until(lambda: server.service.engine._look is not None)
        gate.let_through(1)
        return asked.result(PATIENCE_S)
