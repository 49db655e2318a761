"""What all tests share."""

from __future__ import annotations

import os

import pytest

# Tensors of tests are small and tests run side by side: more threads than one only wait for each other. Set before
# torch is imported, and inherited by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Their libraries are in an environment of their own: `make clients`.
collect_ignore = ["clients"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that run side by side must have the same names in every process, so no addresses in them."""
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"the name of {item.nodeid} has an address in it; give its parameters ids")
