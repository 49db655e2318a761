"""Builds the native kernels for this machine: ``python -m headway.models.native.build``.

Nothing is shipped compiled: the library is built at first use with this machine's instructions, in about ten
seconds, and kept in the user's cache folder under a name that changes with the sources, the compiler, its flags and
the processor's features.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE_FOLDER = Path(__file__).parent
# No -ffast-math: it changes how the whole process treats tiny numbers, and NaN.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-pthread", "-w")
COMPILERS = ("g++", "clang++", "c++")
TIMEOUT_S = 300


class NativeBuildError(RuntimeError):
    """The native kernels cannot be built here; the message says why."""


def library_path() -> Path:
    """The built library, built now if the cache does not hold it.

    Raises:
        NativeBuildError: there is no compiler, it fails, or the cache folder cannot be written.
    """
    compiler = find_compiler()
    version = _run([compiler, "--version"])
    sources = sorted(SOURCE_FOLDER.glob("*.cpp"))
    key = hashlib.sha256()
    for path in sorted(SOURCE_FOLDER.glob("*.h")) + sources:
        key.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    key.update("\0".join((compiler, version, *FLAGS, processor_features())).encode())
    library = cache_folder() / f"kernels-{key.hexdigest()[:20]}.so"
    if not library.exists():
        _compile(compiler, sources, library)
    return library


def find_compiler() -> str:
    """Path of the C++ compiler: the variable ``CXX`` or the first of the usual names."""
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    raise NativeBuildError(f"no C++ compiler found (looked for {wanted or ', '.join(COMPILERS)})")


def cache_folder() -> Path:
    """Where built libraries are kept: ``$XDG_CACHE_HOME/headway``, by default ``~/.cache/headway``."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "headway"
    except RuntimeError as error:  # no home folder
        raise NativeBuildError(f"no cache folder for the built library: {error}") from error


def processor_features() -> str:
    """What the processor can do, as the system tells; libraries are not shared between unequal ones."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("flags", "Features", "model name", "CPU part")
    lines = [line for line in text.split("\n\n")[0].splitlines() if line.split("\t")[0].strip() in wanted]
    return platform.machine() + "\n" + "\n".join(lines)


def _compile(compiler: str, sources: list[Path], library: Path) -> None:
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            built = Path(folder) / library.name
            _run([compiler, *FLAGS, *map(str, sources), "-o", str(built)])
            built.replace(library)  # in one move, so that another process sees all of it or nothing
    except OSError as error:
        raise NativeBuildError(f"cannot write the built library: {error}") from error


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeBuildError(f"{Path(command[0]).name} cannot be run: {error}") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise NativeBuildError(f"{Path(command[0]).name} failed: {last[0]}")
    return done.stdout


if __name__ == "__main__":
    print(library_path())
