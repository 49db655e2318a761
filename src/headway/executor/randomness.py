"""Random numbers that depend on nothing but a request's seed and the place of the token in its sequence.

There is no generator whose state could pass from one request to the next: the number for a token is a hash of (seed,
position). So a request draws the same numbers in any batch, at any slot, in chunks and after preemption.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headway.core.mixing import UInt64, mix64
from headway.core.plan import Int64

_MASK = (1 << 64) - 1
# Keeps seeds made from handles apart from the seeds that clients give.
_UNSEEDED = 0x5851F42D4C957F2D


def request_key(seed: int | None, engine_seed: int, handle: int) -> int:
    """64-bit key of a request: from its own seed, or for one without from the engine's seed and its handle."""
    parts = (seed,) if seed is not None else (_UNSEEDED, engine_seed, handle)
    key = np.zeros(1, np.uint64)
    for part in parts:
        key = mix64(key ^ np.array([part & _MASK], np.uint64))
    return int(key[0])


def uniform(keys: UInt64, positions: Int64, trial: int = 0) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each pair of request key and position, with 53 random bits; further trials, others."""
    bits = mix64(mix64(keys ^ positions.astype(np.uint64)) ^ (keys + np.uint64(trial)))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
