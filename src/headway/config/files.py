"""Files and folders that options name to be written: refused before any work is done if they cannot be."""

from __future__ import annotations

import os
from pathlib import Path

from headway.config.options import ConfigError


def writable_folder(option: str, folder: Path) -> Path:
    """Make ``folder`` if it is not there; :class:`ConfigError` if nothing can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(option, str(folder), f"cannot be made a folder ({error.strerror})") from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(option, str(folder), "cannot be written into")
    return folder


def writable_file(option: str, path: Path) -> Path:
    """:class:`ConfigError` unless a file can be written at ``path``."""
    if path.is_dir():
        raise ConfigError(option, str(path), "is a folder")
    if not path.parent.is_dir():
        raise ConfigError(option, str(path), f"is in {path.parent}, and there is no such folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(option, str(path), "cannot be written")
    return path
