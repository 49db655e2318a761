"""Links between documents lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def documents() -> list[Path]:
    """All documents, without those of installed packages."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as they are made on the web."""
    headings = HEADING.findall(FENCE.sub("", document.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_resolve() -> None:
    broken = []
    for document in documents():
        for link in LINK.findall(FENCE.sub("", document.read_text())):
            if link.startswith(("http://", "https://", "mailto:")):
                continue
            name, _, anchor = link.partition("#")
            target = document.parent / name if name else document
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{document.relative_to(ROOT)} -> {link}")

    assert broken == []


def test_every_document_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(index.read_text())}

    assert [path.name for path in (ROOT / "docs").rglob("*.md") if path != index and path.resolve() not in linked] == []


@pytest.mark.parametrize(
    "script", ["build_dashboard", "draw_states", "list_fields", "list_options", "list_schema_keywords"]
)
def test_generated_documents_are_up_to_date(script: str) -> None:
    spec = importlib.util.spec_from_file_location(script, ROOT / "docs" / f"{script}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert module.TARGET.read_text() == module.render(), "run 'make docs'"


def test_the_readme_maps_every_part() -> None:
    parts = [path.parent.name for path in (ROOT / "src" / "headway").glob("*/__init__.py")]
    readme = (ROOT / "README.md").read_text()

    assert [part for part in sorted(parts) if f"`src/headway/{part}/`" not in readme] == []
