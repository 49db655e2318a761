"""A hash of 64-bit numbers, whole arrays at once: the source of every "random" choice that must repeat exactly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UInt64 = npt.NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)


def mix64(value: UInt64) -> UInt64:
    """Hash each number on its own: one step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). Not for security."""
    value = value + _STEP
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
