"""What all tests share."""

from __future__ import annotations

import os

# Tensors of tests are small and tests run side by side: more threads than one only wait for each other. Set before
# torch is imported, and inherited by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
