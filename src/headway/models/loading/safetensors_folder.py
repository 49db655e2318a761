"""Weights in a Hugging Face folder: ``*.safetensors``, in one file or several with an index. Read tensor by tensor."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from headway.models.loading.errors import BadModelFile
from headway.models.loading.lazy import TensorEntry

INDEX_NAME = "model.safetensors.index.json"

# Types of plain numbers; anything else in a file is some quantisation with rules of its own.
_PLAIN_TYPES = ("BF16", "F16", "F32", "F64")


def read_json(path: Path) -> dict[str, Any]:
    """Content of a JSON file that must be an object; :class:`BadModelFile` if it is absent or is not."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadModelFile(path, "does not exist") from error
    except (OSError, ValueError) as error:
        raise BadModelFile(path, f"cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise BadModelFile(path, "must hold a JSON object")
    return content


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a folder, sorted: those its index names, else the usual one, else all there are.

    The files named by an index need not exist; reading says so.
    """
    index = folder / INDEX_NAME
    if index.is_file():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise BadModelFile(index, "has no weight_map")
        names = sorted(dict.fromkeys(map(str, shards.values())))
        for name in names:
            if Path(name).name != name:
                raise BadModelFile(index, f"names {name!r}, which is not a file of its own folder")
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    return [single] if single.is_file() else sorted(folder.glob("*.safetensors"))


def folder_entries(folder: Path) -> dict[str, TensorEntry]:
    """All tensors of a folder by name, none of them read yet.

    Raises:
        BadModelFile: no weights, a shard that is absent or damaged, or a tensor that two shards claim.
    """
    files = weight_files(folder)
    if not files:
        others = any(folder.glob("*.bin")) or any(folder.glob("*.pth"))
        pickled = "; pickled weights (*.bin, *.pth) are not read, since loading them can run code" if others else ""
        raise BadModelFile(folder, f"holds no *.safetensors{pickled}")
    entries: dict[str, TensorEntry] = {}
    for path in files:
        for name, entry in _file_entries(path).items():
            if name in entries:
                raise BadModelFile(path, f"tensor {name!r} is in {entries[name].path.name} too")
            entries[name] = entry
    return entries


def _file_entries(path: Path) -> dict[str, TensorEntry]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise BadModelFile(path, "does not exist, though the index names it")
    try:
        file = safe_open(path, framework="pt")
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise BadModelFile(path, f"is not a whole safetensors file ({error})") from error
    entries = {}
    for name, view in slices.items():
        kind = view.get_dtype()
        entries[name] = TensorEntry(
            path=path,
            shape=tuple(view.get_shape()),
            kind=kind,
            plain=kind in _PLAIN_TYPES,
            read=partial(file.get_tensor, name),
        )
    return entries
