"""Writes docs/options.md from the option dataclasses of ``headway.config``; run by ``make docs``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import headway.config
from headway.config import Checked

TARGET = Path(__file__).with_name("options.md")


def option_classes() -> list[type[Checked]]:
    """All option dataclasses that ``headway.config`` exports, by name."""
    exported = (getattr(headway.config, name) for name in headway.config.__all__)
    return [
        found
        for found in exported
        if isinstance(found, type) and issubclass(found, Checked) and dataclasses.is_dataclass(found)
    ]


def default_text(spec: dataclasses.Field[Any]) -> str:
    """The default as a reader would type it."""
    value = spec.default if spec.default_factory is dataclasses.MISSING else spec.default_factory()
    if value is dataclasses.MISSING:
        return "required"
    if isinstance(value, Mapping | tuple) and not value:
        return "empty"
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "none"
    return f"`{value}`" if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else str(value)


def limits_text(spec: dataclasses.Field[Any]) -> str:
    """Which values are allowed."""
    if spec.metadata.get("choices"):
        return ", ".join(f"`{choice}`" for choice in spec.metadata["choices"])
    low, high = spec.metadata.get("minimum"), spec.metadata.get("maximum")
    if low is not None and high is not None:
        return f"{low} to {high}"
    return f"at least {low}" if low is not None else f"at most {high}" if high is not None else ""


def table(options: type[Checked]) -> list[str]:
    """One class: its sentence and one line per option."""
    summary = (options.__doc__ or "").strip().splitlines()[0]
    lines = [f"## {options.__name__}", "", summary, ""]
    lines += ["| Option | Default | Unit | Allowed | Meaning |", "|---|---|---|---|---|"]
    for spec in dataclasses.fields(options):  # type: ignore[arg-type]
        cells = (
            f"`{spec.name}`",
            default_text(spec),
            spec.metadata.get("unit", ""),
            limits_text(spec),
            spec.metadata.get("help", ""),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def render() -> str:
    """The document."""
    lines = [
        "# Options",
        "",
        "Written by `make docs` from the dataclasses in `src/headway/config`, which also make the command-line flags",
        "and check every value. Rules between options are in each class's `check`.",
        "",
    ]
    for options in option_classes():
        lines += table(options)
    return "\n".join(lines)


if __name__ == "__main__":
    TARGET.write_text(render())
