"""One tiny model for all tests of the commands, and a machine that has no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.models.tiny import make_tiny


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random model."""
    return make_tiny(tmp_path_factory.mktemp("tiny"), "llama")


@pytest.fixture
def nothing_to_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, and a test that fails if anything is fetched into it."""

    def fetch(*arguments: object) -> None:
        raise AssertionError(f"began to fetch {arguments}")

    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr("headway.models.loading.source.fetch_packaged", fetch)
    for name in ("cached_file", "cached_snapshot"):
        monkeypatch.setattr(f"headway.models.loading.hub.{name}", lambda *arguments: None)
    for name in ("download_file", "download_snapshot"):
        monkeypatch.setattr(f"headway.models.loading.hub.{name}", fetch)
