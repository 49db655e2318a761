"""Memory of which addresses are taken at once, and pages when something is written to them."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

PIECE_BYTES = 64 << 20
"""So much is taken between two looks at what is left, and looked through at a time."""

_HUGE_PAGE_FILE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_USUAL_HUGE_PAGE = 2 << 20


class ReservedMemory:
    """Private memory of this process. Pages that were never written to read as zeros and take nothing.

    The system gives pages at the first write, whether they were promised to others meanwhile or not: so whoever makes
    one asks beforehand what is free.

    Args:
        num_bytes: how much.
        huge_pages: ask for huge pages, where the system gives them. A fault then gives 2 MiB instead of 4 KiB, which
            took a fourteenth of the time per byte; but what is written in several places takes one for each.

    Attributes:
        buffer: uint8[num_bytes].

    Raises:
        OSError: the system refuses so many addresses.
    """

    def __init__(self, num_bytes: int, *, huge_pages: bool = False) -> None:
        # Without MAP_NORESERVE: it would change nothing for a size that was free when we asked.
        padding = huge_page_bytes() if huge_pages else 0
        pages = mmap.mmap(-1, num_bytes + padding, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if huge_pages and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without them
                pages.madvise(mmap.MADV_HUGEPAGE)
        whole = torch.frombuffer(pages, dtype=torch.uint8)  # keeps the pages as long as it is used
        start = -whole.data_ptr() % padding if padding else 0
        self.buffer = whole[start : start + num_bytes]

    def take(self, available: Callable[[], int | None]) -> int:
        """Have all pages given now, piece by piece, until what is missing is not there any more.

        Others may take the same memory at the same time; looking only once, both would find it free.

        Args:
            available: bytes that can still be taken; ``None`` if the system does not tell.

        Returns:
            Bytes that were taken: all, or so many that the rest is not available.
        """
        for start in range(0, len(self.buffer), PIECE_BYTES):
            free = available()
            if free is not None and len(self.buffer) - start > free:
                return start
            self.buffer[start : start + PIECE_BYTES].zero_()
        return len(self.buffer)

    def resident_bytes(self, num_bytes: int | None = None) -> int | None:
        """How much of the first ``num_bytes`` (all by default) is in memory, in whole pages; about 1 ms per 4 GiB.

        Returns:
            ``None`` if the system does not tell.
        """
        end = len(self.buffer) if num_bytes is None else num_bytes
        mincore = getattr(ctypes.CDLL(None), "mincore", None)
        if mincore is None:
            return None
        flags = np.zeros(PIECE_BYTES // mmap.PAGESIZE, np.uint8)
        num_pages = 0
        for start in range(0, end, PIECE_BYTES):
            length = min(PIECE_BYTES, end - start)
            address = ctypes.c_void_p(self.buffer.data_ptr() + start)
            if mincore(address, ctypes.c_size_t(length), ctypes.c_void_p(flags.ctypes.data)):
                return None
            num_pages += int(np.count_nonzero(flags[: -(-length // mmap.PAGESIZE)] & 1))
        return min(end, num_pages * mmap.PAGESIZE)


def huge_page_bytes() -> int:
    """Size of a huge page."""
    try:
        return int(_HUGE_PAGE_FILE.read_text())
    except (OSError, ValueError):
        return _USUAL_HUGE_PAGE
