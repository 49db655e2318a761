"""Writes the tables in docs/structured-output.md from ``config/schemas``; run by ``make docs``."""

from __future__ import annotations

from pathlib import Path

from headway.config.schemas.formats import FORMATS, FREE
from headway.config.schemas.keywords import KEYWORDS

TARGET = Path(__file__).with_name("structured-output.md")
BEGIN = "<!-- keywords: written by `make docs` from config/schemas -->\n"
END = "<!-- end of keywords -->\n"


def table() -> list[str]:
    """Keywords that share everything but their names share a line."""
    lines: dict[tuple[str, str], list[str]] = {}
    for keyword in KEYWORDS:
        lines.setdefault((keyword.keeping, keyword.text), []).append(f"`{keyword.name}`")
    rows = [f"| {', '.join(names)} | {keeping} | {text} |" for (keeping, text), names in lines.items()]
    return ["| Keyword | | Notes |", "|---|---|---|", *rows, ""]


def render() -> str:
    """The document, with its tables written anew."""
    before, _, rest = TARGET.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    formats = ", ".join(f"`{name}`" for name in FORMATS)
    free = ", ".join(f"`{name}`" for name in sorted(FREE))
    lines = ["", *table(), f"Formats that are enforced: {formats}.", "", f"Formats that any text has: {free}.", ""]
    return before + BEGIN + "\n".join(lines) + "\n" + END + after


if __name__ == "__main__":
    TARGET.write_text(render())
