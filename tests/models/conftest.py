"""What the model tests share."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "real_model: uses SmolLM2 135M, from the cache or the package registry (deselect when offline)"
    )
