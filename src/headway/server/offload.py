"""Work on large bodies in a thread, so that the event loop goes on meanwhile: one body after the other, of calls and of
answers.

Python's lock is still shared: what runs in the thread must be many small steps, or calls that let go of the lock. So
bodies are bounded by their number of values before they are parsed (``max_body_values``), which one call does at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

INLINE_BYTES = 32 * 1024
"""Bodies up to this size are read or written on the spot, in about a millisecond: a thread would cost as much."""

P = ParamSpec("P")
R = TypeVar("R")


class Offload:
    """The thread for large bodies."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bodies")

    async def run(self, num_bytes: int, work: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
        """What ``work`` returns or raises; ``num_bytes`` is the size of the body that it reads or writes."""
        if num_bytes <= INLINE_BYTES:
            return work(*args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(*args, **options))

    def close(self) -> None:
        """Take no more work."""
        self._thread.shutdown(wait=False, cancel_futures=True)
