"""How deeply JSON that comes from outside may be nested: one limit for bodies, schemas, tools and message contents.

Whatever recurses over such a value (validation, schemas, templates, grammars) then stays far from the interpreter's
own limit, which some of them would meet as a crash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headway.config.options import ConfigError

MAX_JSON_DEPTH = 100
"""Lists and objects within each other; a schema of objects nested n deep takes 2n + 1."""


class NestedTooDeeply(ConfigError):
    """A value from outside nests more than ``MAX_JSON_DEPTH`` lists and objects.

    Args:
        field: where it stands.
    """

    def __init__(self, field: str) -> None:
        super().__init__(field, "json", f"must not nest lists and objects more than {MAX_JSON_DEPTH} deep")


def too_deep(value: Any, limit: int = MAX_JSON_DEPTH) -> bool:
    """Whether lists and objects are nested more than ``limit`` deep. Goes level by level, so nothing recurses."""
    level = [value] if isinstance(value, Mapping | list | tuple) else []
    for _ in range(limit):
        if not level:
            return False
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, Mapping) else node)
            if isinstance(child, Mapping | list | tuple)
        ]
    return bool(level)


def check_depth(field: str, value: Any) -> None:
    """Raise :class:`NestedTooDeeply` naming ``field`` if ``value`` is."""
    if too_deep(value):
        raise NestedTooDeeply(field)


def load_json(field: str, text: str) -> Any:
    """The value of a JSON text that came from outside.

    Raises:
        NestedTooDeeply: as it says.
        ValueError: it is no JSON.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise NestedTooDeeply(field) from None
    check_depth(field, value)
    return value
