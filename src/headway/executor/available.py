"""How much memory can still be taken: of the machine, and of the control groups (containers, services) we are in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

ROOT = Path("/")


@dataclass(frozen=True)
class _GroupFiles:
    """Names of one version of control groups.

    Attributes:
        folder: where the groups are, below the root.
        controller: in the second field of /proc/self/cgroup.
        limits: files with bytes; the least counts.
        used: file with the bytes in use, caches of files included.
        cached, mapped: keys in memory.stat: bytes of cached files, and how much of them a process has mapped.
    """

    folder: str
    controller: str
    limits: tuple[str, ...]
    used: str
    cached: tuple[str, ...]
    mapped: str


_VERSION_2 = _GroupFiles(
    folder="sys/fs/cgroup",
    controller="",
    limits=("memory.max", "memory.high"),
    used="memory.current",
    cached=("active_file", "inactive_file"),
    mapped="file_mapped",
)
_VERSION_1 = _GroupFiles(
    folder="sys/fs/cgroup/memory",
    controller="memory",
    limits=("memory.limit_in_bytes",),
    used="memory.usage_in_bytes",
    cached=("total_active_file", "total_inactive_file"),
    mapped="total_mapped_file",
)


def available_bytes(device: torch.device, root: Path = ROOT) -> int | None:
    """Memory that can still be taken on ``device`` without swapping; ``None`` if the system does not tell.

    On a CPU it is the least of what the machine has left and what every control group above this process allows, files
    that the system caches and nobody has mapped counting as free.

    Args:
        root: where the system's files are.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    machine = _numbers(root / "proc/meminfo", unit=1024).get("MemAvailable")
    found = [] if machine is None else [machine]
    for files in (_VERSION_2, _VERSION_1):
        for folder in _group_folders(files, root):
            found += _group_bytes(files, folder)
    return min(found, default=None)


def _group_folders(files: _GroupFiles, root: Path) -> Iterator[Path]:
    """Our group and those around it. In a container, groups outside have no folder."""
    top = root / files.folder
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if files.controller in controllers.split(","):
            parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
            yield from (top.joinpath(*parts[:depth]) for depth in range(len(parts), 0, -1))
    yield top


def _group_bytes(files: _GroupFiles, folder: Path) -> Iterator[int]:
    """What one group still allows; nothing if it has no limit."""
    limits = [int(text) for name in files.limits for text in _lines(folder / name) if text.isdecimal()]
    used = [int(text) for text in _lines(folder / files.used) if text.isdecimal()]
    if limits and used:
        stat = _numbers(folder / "memory.stat")
        cached = sum(stat.get(key, 0) for key in files.cached) - stat.get(files.mapped, 0)
        yield max(0, min(limits) - used[0] + max(0, cached))


def _numbers(path: Path, unit: int = 1) -> dict[str, int]:
    """``name value`` or ``name: value kB`` per line."""
    words = [line.replace(":", " ").split() for line in _lines(path)]
    return {
        name: int(value) * unit for name, value, *_ in (line for line in words if len(line) > 1) if value.isdecimal()
    }


def _lines(path: Path) -> list[str]:
    """A file's lines; none if it is not there or not ours to read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
