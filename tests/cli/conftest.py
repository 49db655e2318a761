"""One tiny model for all tests of the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.models.tiny import make_tiny


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random model."""
    return make_tiny(tmp_path_factory.mktemp("tiny"), "llama")
