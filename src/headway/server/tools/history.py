"""Arguments of calls that clients send back, as chat templates get them: always an object, whatever was written.

A model may write anything where arguments belong, and an output may be cut anywhere. The server passes that on, so it
takes it back as well (docs/decisions/0016): a conversation must not end because one call in it is broken.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json

MALFORMED = "malformed"
"""The one key of an object that stands for arguments which are none; its value is their text."""

MAX_VALUES = 100_000
"""Arguments of more values are not read: no model wrote them, and one reading would hold up everybody else. Commas are
counted, those in texts too."""


def arguments_for_template(text: str | None) -> dict[str, Any]:
    """The arguments of a call as an object, which templates write as JSON again or go through.

    * The text of an object is that object.
    * An object that was cut is what is there of it: ``{"a": 1, "b": "Os`` is ``{"a": 1, "b": "Os"}``.
    * A JSON string is read once more, since some models write objects as texts in JSON.
    * Nothing, or ``null``, is an object without keys.
    * Anything else is ``{"malformed": text}``, and so is what has more than ``MAX_VALUES`` values.
    """
    text = text or ""
    if text.count(",") >= MAX_VALUES:
        return {MALFORMED: text}
    value = _read(text)
    if isinstance(value, str):
        value = _read(value)
    if value is None and text.strip() in ("", "null"):
        return {}
    return value if isinstance(value, dict) and _can_be_written(value) else {MALFORMED: text}


def _read(text: str) -> Any:
    """The value of a JSON text that may have been cut; ``None`` if there is none."""
    try:
        return from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return None


def _can_be_written(value: dict[str, Any]) -> bool:
    """Whether a template can write it as JSON: numbers of too many digits cannot be."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # UnicodeError is a ValueError
        return False
    return True
