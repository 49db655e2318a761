"""A real browser, if this machine has one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def browser_path() -> str | None:
    """Chromium or Chrome as the system installs it."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser; skips the tests that need it where there is none."""
    path = browser_path()
    if path is None:
        pytest.skip("no Chromium is installed; 'make browser' installs Debian's")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=Path(path), args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()
