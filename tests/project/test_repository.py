"""Rules of the house that a machine can check."""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import headway

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".ci", "benchmarks", "docs", "examples", "scripts", "src", "tests")
TEXT_SUFFIXES = {"", ".cpp", ".h", ".jinja", ".json", ".md", ".py", ".toml", ".txt", ".yml"}
SKIPPED = re.compile(r"__pycache__|\.egg-info|/out/")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
# Spelt with brackets so that this file does not match itself.
MACHINE_PATH = re.compile(r"/(?:hom[e]/\w|roo[t]/|wor[k]/|tm[p]/|Users[/])")
REGISTRY_HOST = re.compile(r"pypi\.or[g]|pythonhosted\.or[g]|download\.pytorch\.or[g]|registry\.npmj[s]|hf\.c[o]\b")
UNFINISHED = re.compile(r"raise NotImplementedErro[r]|TOD[O]|FIXM[E]|XX[X]|mark\.ski[p]|mark\.xfai[l]")


def text_files() -> Iterator[Path]:
    """All files of the project that people write."""
    paths = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        paths += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in sorted(paths):
        if path.suffix in TEXT_SUFFIXES and not SKIPPED.search(path.as_posix()):
            yield path


def matches(pattern: re.Pattern[str], suffixes: tuple[str, ...]) -> list[str]:
    """``file:line: text`` of every line that ``pattern`` is found in."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in text_files()
        if path.suffix in suffixes and path.name != ".git"  # which a work tree of its own has as a file
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_the_walk_finds_the_sources() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in text_files()}

    assert {"Makefile", ".ci/run", "pyproject.toml", "src/headway/core/plan.py", "docs/design/step.md"} <= found


def test_no_python_file_is_too_long() -> None:
    lengths = {
        path.relative_to(ROOT): len(path.read_text().splitlines()) for path in text_files() if path.suffix == ".py"
    }

    assert {path: length for path, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_no_function_is_too_long() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in text_files()
        if path.suffix == ".py" and path.is_relative_to(ROOT / "src")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES
    ]

    assert too_long == []


def test_no_path_of_a_machine() -> None:
    assert matches(MACHINE_PATH, tuple(TEXT_SUFFIXES)) == []


def test_no_registry_host() -> None:
    assert matches(REGISTRY_HOST, tuple(TEXT_SUFFIXES)) == []


def test_nothing_unfinished_or_skipped() -> None:
    assert matches(UNFINISHED, (".py", ".cpp", ".h")) == []


def test_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert headway.__version__ == project["version"]


def packages() -> list[str]:
    """Names of all packages of Headway."""
    found = pkgutil.walk_packages(headway.__path__, prefix="headway.")
    return ["headway", *(module.name for module in found if module.ispkg)]


def export_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, as ruff sorts ``__all__``."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


def test_public_names_are_sorted_and_exist() -> None:
    for package in packages():
        module = importlib.import_module(package)
        names = list(getattr(module, "__all__", []))

        assert names == sorted(set(names), key=export_order), package
        assert [name for name in names if not hasattr(module, name)] == [], package


def test_every_package_says_what_it_is() -> None:
    silent = [name for name in packages() if not (importlib.import_module(name).__doc__ or "").strip()]

    assert silent == []


def test_ci_calls_make_test() -> None:
    script = ROOT / ".ci" / "run"

    assert os.access(script, os.X_OK)
    assert script.read_text().strip().endswith("exec make test")


def test_make_help_names_every_target() -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )

    listed = re.findall(r"^  make (\S+)", shown.stdout, re.MULTILINE)
    assert sorted([*listed, "format-check", "imports", "lint", "types"]) == sorted(targets[1].split())
