"""From a name as a user types it to files on this machine.

A name is, in this order: an alias of the catalogue, a path that exists, a hub name ("org/name", or
"org/name/file.gguf" for one file of a repository). Write ``./name`` for a folder that is called like an alias.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.models.loading import hub
from headway.models.loading.catalog import CATALOG, PackagedModel, cached_path, is_cached
from headway.models.loading.download import ProgressCallback, fetch_packaged
from headway.models.loading.errors import BadModelFile, ModelNotFound

_HUB_NAME = re.compile(r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:/(?P<file>.+\.gguf))?")


@dataclass(frozen=True)
class ModelSource:
    """A model on this machine.

    Attributes:
        name: what to call it: the alias or hub name, or the last part of a path.
        kind: "folder" (Hugging Face: config.json and safetensors) or "gguf".
        path: the folder or the file.
    """

    name: str
    kind: Literal["folder", "gguf"]
    path: Path


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """One line of the list of models.

    Attributes:
        name: what to give to :func:`resolve_model`.
        title: what it is, for people; empty if unknown.
        license: terms of the weights; empty if unknown.
        path: where it lies, ``None`` if it is not on this machine yet.
        size_bytes: on disk, once fetched.
        download_bytes: over the network, to fetch it; 0 for models that are known only because they are here.
    """

    name: str
    title: str
    license: str
    path: Path | None
    size_bytes: int
    download_bytes: int


def resolve_model(
    name: str, *, cache_dir: str | os.PathLike[str] | None = None, progress: ProgressCallback | None = None
) -> ModelSource:
    """Find the model that goes by ``name``, and fetch it first if it is not on this machine.

    Args:
        name: an alias, a path or a hub name.
        cache_dir: folder for models fetched by alias; see :func:`~headway.models.loading.catalog.cache_root`.
        progress: called while an alias is fetched.

    Raises:
        ModelNotFound: nothing goes by this name.
        DownloadFailed: it exists but could not be fetched.
        BadModelFile: a path that exists but holds no model.
    """
    if name in CATALOG:
        model = CATALOG[name]
        if not is_cached(model, cache_dir):
            fetch_packaged(model, cached_path(model, cache_dir), progress)
        return _packaged_source(model, cache_dir)
    path = Path(name).expanduser()
    if name and path.exists():
        return _local_source(path)
    repo_id, filename = _hub_parts(name)
    if filename is not None:
        return ModelSource(name, "gguf", hub.cached_file(repo_id, filename) or hub.download_file(repo_id, filename))
    return ModelSource(name, "folder", hub.cached_snapshot(repo_id) or hub.download_snapshot(repo_id))


def pull(
    name: str, progress: ProgressCallback | None = None, *, cache_dir: str | os.PathLike[str] | None = None
) -> ModelSource:
    """Fetch the model that goes by ``name``, also what has changed of a hub model that is here already.

    ``progress`` is called for aliases; for hub names ``huggingface_hub`` shows its own bars. Raises as
    :func:`resolve_model` does.
    """
    if name in CATALOG or Path(name).expanduser().exists():
        return resolve_model(name, cache_dir=cache_dir, progress=progress)
    repo_id, filename = _hub_parts(name)
    if filename is not None:
        return ModelSource(name, "gguf", hub.download_file(repo_id, filename))
    return ModelSource(name, "folder", hub.download_snapshot(repo_id))


def list_models(cache_dir: str | os.PathLike[str] | None = None) -> list[ModelInfo]:
    """The catalogue, then complete models in the hub's cache; each sorted by name. Asks no network."""
    packaged = [
        ModelInfo(
            name=model.alias,
            title=model.title,
            license=model.license,
            path=cached_path(model, cache_dir) if is_cached(model, cache_dir) else None,
            size_bytes=model.size_bytes,
            download_bytes=model.download_bytes,
        )
        for model in CATALOG.values()
    ]
    fetched = [
        ModelInfo(name=name, title="", license="", path=folder, size_bytes=size, download_bytes=0)
        for name, folder, size in hub.cached_repositories()
    ]
    return packaged + fetched


def _packaged_source(model: PackagedModel, cache_dir: str | os.PathLike[str] | None) -> ModelSource:
    return ModelSource(model.alias, "gguf", cached_path(model, cache_dir))


def _local_source(path: Path) -> ModelSource:
    name = path.resolve().name
    if path.is_file():
        if path.suffix != ".gguf":
            raise BadModelFile(path, "is neither a folder nor a .gguf file; for *.safetensors give the folder")
        return ModelSource(name.removesuffix(".gguf"), "gguf", path)
    if (path / "config.json").is_file():
        return ModelSource(name, "folder", path)
    files = sorted(path.glob("*.gguf"))
    if len(files) != 1:
        found = f"{len(files)} .gguf files; give the path of one" if files else "no .gguf file either"
        raise BadModelFile(path, f"holds no config.json, and {found}")
    return ModelSource(name, "gguf", files[0])


def _hub_parts(name: str) -> tuple[str, str | None]:
    """Repository and file of a hub name; :class:`ModelNotFound` for what cannot be one."""
    match = _HUB_NAME.fullmatch(name)
    if match:
        return match["repo"], match["file"]
    if not name.strip():
        raise ModelNotFound(name, "the name is empty", list(CATALOG))
    if name.startswith((".", "~", os.sep)) or name.endswith(".gguf") or os.sep in name:
        raise ModelNotFound(name, "there is no such file or folder", list(CATALOG))
    close = difflib.get_close_matches(name.lower(), CATALOG, n=1)
    raise ModelNotFound(name, f"did you mean {close[0]!r}?" if close else "no such alias", list(CATALOG))
