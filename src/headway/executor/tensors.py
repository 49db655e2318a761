"""From NumPy to the device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def to_device(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """``array`` on ``device``; on the CPU without a copy. The array must be writable and is not changed."""
    return torch.from_numpy(array).to(device)
