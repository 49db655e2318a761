"""JSON in and out. Bodies are written as plain dictionaries: a model per chunk would cost more than the rest of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from orjson import JSONDecodeError as JSONDecodeError
from starlette.responses import Response


def dump(value: Any) -> bytes:
    """JSON without spaces."""
    return orjson.dumps(value)


def load(body: bytes) -> Any:
    """The value in a body.

    Raises:
        json.JSONDecodeError: it is not JSON, not UTF-8, or nested too deeply.
    """
    return orjson.loads(body)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer with a JSON body."""
    return Response(dump(value), status, headers, media_type="application/json")
