"""JSON in and out. Bodies are written as plain dictionaries: a model per chunk would cost more than the rest of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from orjson import JSONDecodeError as JSONDecodeError
from starlette.responses import Response

from headway.config.depth import NestedTooDeeply, check_depth

_PARSER_GAVE_UP = "depth limit exceeded"


def dump(value: Any) -> bytes:
    """JSON without spaces."""
    return orjson.dumps(value)


def load(body: bytes) -> Any:
    """The value in a body.

    Raises:
        NestedTooDeeply: as it says.
        json.JSONDecodeError: it is not JSON, or not UTF-8.
    """
    try:
        value = orjson.loads(body)
    except JSONDecodeError as error:
        if error.msg == _PARSER_GAVE_UP:  # not for being wrong: its own limit is ten times ours
            raise NestedTooDeeply("the body") from error
        raise
    check_depth("the body", value)
    return value


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer with a JSON body."""
    return Response(dump(value), status, headers, media_type="application/json")
