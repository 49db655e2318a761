"""Makes ``.venv`` and installs Headway into it; run by ``make setup`` with nothing but Python 3.11.

Torch is the one large dependency. Which build pip finds depends on the machine; a CUDA build drags in gigabytes of
libraries, so pip is asked first what it would install, and the set-up stops with a sentence if that is CUDA.

Environment:
    HEADWAY_PIP_ARGS: further arguments for every ``pip install``, for example an index with CPU builds of torch.
    HEADWAY_ALLOW_CUDA: set to 1 to take a CUDA build on purpose.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
CONSTRAINTS = ROOT / "constraints.txt"
CUDA_PREFIXES = ("nvidia", "triton", "cuda-", "pytorch-triton")


class SetupError(Exception):
    """The set-up cannot go on; the text says why and what to do."""


def cuda_packages(names: Iterable[str]) -> list[str]:
    """Those of ``names`` that belong to a CUDA build of torch, sorted."""
    return sorted(name for name in (given.lower() for given in names) if name.startswith(CUDA_PREFIXES))


def pip_arguments() -> list[str]:
    """``pip install`` with the constraints and what the user adds."""
    extra = shlex.split(os.environ.get("HEADWAY_PIP_ARGS", ""))
    return [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "-c", str(CONSTRAINTS), *extra]


def make_venv() -> None:
    """Create ``.venv`` unless a usable one is there."""
    if PYTHON.exists():
        return
    print(f"setup: making {VENV.name} with Python {sys.version.split()[0]}", flush=True)
    try:
        venv.EnvBuilder(with_pip=True, clear=VENV.exists()).create(VENV)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetupError(f"could not make .venv: {error}. Are Python's venv and ensurepip modules there?") from None


def has_torch() -> bool:
    """Whether torch is installed in ``.venv`` already (it is not imported: that is slow)."""
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return subprocess.run([PYTHON, "-c", probe], check=False).returncode == 0


def pinned_torch() -> str:
    """The line of the constraints file that pins torch."""
    lines = (line.strip() for line in CONSTRAINTS.read_text().splitlines())
    return next(line for line in lines if line.startswith("torch=="))


def refuse_cuda() -> None:
    """Raise :class:`SetupError` if pip would install a CUDA build of torch."""
    if os.environ.get("HEADWAY_ALLOW_CUDA") == "1" or has_torch():
        return
    command = [*pip_arguments(), "--quiet", "--dry-run", "--report", "-", pinned_torch()]
    answer = subprocess.run(command, check=False, capture_output=True, text=True)
    if answer.returncode:
        raise SetupError(f"pip found no {pinned_torch()}:\n{answer.stderr.strip()}")
    report = json.loads(answer.stdout)
    found = cuda_packages(item["metadata"]["name"] for item in report["install"])
    if found:
        raise SetupError(
            f"pip would install a CUDA build of torch ({len(found)} packages, {', '.join(found[:3])} ...), several"
            " gigabytes that Headway does not need on a CPU. Point pip at CPU builds, for example"
            " HEADWAY_PIP_ARGS='--extra-index-url URL' make setup, or take CUDA on purpose with HEADWAY_ALLOW_CUDA=1."
        )


def install() -> None:
    """Install Headway, editable, with the engine, the server, forms of outputs and the development tools."""
    print("setup: installing (the first time takes a minute or two)", flush=True)
    command = [*pip_arguments(), "-qq", "-e", f"{ROOT}[engine,server,structured,dev]"]
    if subprocess.run(command, check=False).returncode:
        raise SetupError("pip failed; its message is above.")


def main() -> int:
    """Run the set-up; 0 if all is in place."""
    try:
        make_venv()
        refuse_cuda()
        install()
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
