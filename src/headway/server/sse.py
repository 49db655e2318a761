"""Server-sent events, as OpenAI's streams are written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headway.server.json import dump

MEDIA_TYPE = "text/event-stream; charset=utf-8"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
DONE = b"data: [DONE]\n\n"
COMMENT = b": waiting\n\n"
"""Keeps a silent connection open; clients pass over it."""


def events(values: Iterable[Any]) -> bytes:
    """One event per value."""
    return b"".join(b"data: " + dump(value) + b"\n\n" for value in values)
