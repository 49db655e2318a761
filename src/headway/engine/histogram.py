"""Histograms with fixed buckets, as a metrics page wants them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

REQUEST_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0,
)  # fmt: skip
"""Buckets for what a client waits for."""

PHASE_SECONDS = (
    1e-5, 2e-5, 5e-5, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
"""Buckets for parts of a step."""

FEW = (0.0, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0)
"""Buckets for what should happen seldom to one request."""

TOKENS = tuple(float(2**power) for power in range(18))
"""Buckets for lengths, 1 to 131,072 tokens."""


@dataclass
class Histogram:
    """Counts of observations per bucket.

    Attributes:
        bounds: upper ends of the buckets, inclusive, rising; one more bucket takes what is above the last.
        counts: int64[len(bounds) + 1], observations per bucket (not cumulative).
        sum: of all observations.
    """

    bounds: tuple[float, ...]
    counts: npt.NDArray[np.int64] = field(init=False)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = np.zeros(len(self.bounds) + 1, np.int64)
        self._bounds = np.array(self.bounds)

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[np.searchsorted(self._bounds, value)] += 1
        self.sum += value

    def observe_many(self, values: npt.NDArray[np.float64]) -> None:
        """Count several observations."""
        self.counts += np.bincount(np.searchsorted(self._bounds, values), minlength=len(self.counts))
        self.sum += float(values.sum())

    def copy(self) -> Histogram:
        """A copy that stays as it is."""
        copied = Histogram(self.bounds)
        copied.counts[:] = self.counts
        copied.sum = self.sum
        return copied

    @property
    def count(self) -> int:
        """Number of observations."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """Mean of all observations; 0 without any."""
        count = self.count
        return self.sum / count if count else 0.0
