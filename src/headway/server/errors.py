"""Errors as OpenAI's API writes them: ``{"error": {"message", "type", "param", "code"}}``, whatever went wrong."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headway.config import ConfigError
from headway.config.depth import NestedTooDeeply
from headway.config.structured import FAILED as FORM_FAILED
from headway.core.request import PromptTooLong, RequestRefused
from headway.engine.outputs import RequestError
from headway.engine.worker import TIMEOUT
from headway.server.admission import TurnedAway
from headway.server.json import json_response
from headway.server.wayfinding import Signpost

RETRY_AFTER_S = 1
"""What a client that was turned away is told to wait; long enough for a few steps, and a balancer goes elsewhere."""

MAX_MESSAGE_CHARS, MAX_PARAM_CHARS = 1000, 200
"""Whatever a client sent, no more of it comes back in an error."""
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 100

INVALID = "invalid_request_error"
UNAUTHENTICATED = "authentication_error"
UNAVAILABLE = "service_unavailable"
FAILED = "server_error"


class ApiError(Exception):
    """What a client is told.

    Attributes:
        status: of HTTP.
        kind: the body's "type".
        code: for programs (docs/server.md lists all).
        param: the field to blame, if one is.
        headers: to send along.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The body of the answer."""
        message, param = _cut(str(self), MAX_MESSAGE_CHARS), self.param
        if param is not None:
            param = _cut(param, MAX_PARAM_CHARS)
        return {"error": {"message": message, "type": self.kind, "param": param, "code": self.code}}

    def response(self) -> Response:
        """The whole answer."""
        return json_response(self.body, self.status, self.headers)


def shown(value: object) -> str:
    """A client's value as messages repeat it: cut in the middle if it is long, without a look at the rest."""
    return _SHOWN.repr(value)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def invalid(message: str, param: str | None, code: str = "invalid_value") -> ApiError:
    """A field that cannot be used."""
    return ApiError(400, message, code=code, param=param)


def unavailable(message: str, code: str) -> ApiError:
    """Not now, or not here."""
    return ApiError(503, message, kind=UNAVAILABLE, code=code, headers={"Retry-After": str(RETRY_AFTER_S)})


def draining() -> ApiError:
    """The server is about to end."""
    return unavailable("the server is shutting down", "draining")


def engine_dead(message: str) -> ApiError:
    """There is no engine any more."""
    return unavailable(message, "engine_dead")


def turned_away(error: TurnedAway) -> ApiError:
    """A queue limit is reached."""
    return unavailable(str(error), error.reason)


def refused(error: RequestRefused, param: str | None = None) -> ApiError:
    """The engine can never serve this; ``param`` is what the client calls its prompt."""
    if error.field == "request_id":
        return invalid(str(error), "X-Request-Id", "duplicate_request_id")
    if error.field == "prompt":
        if isinstance(error, PromptTooLong):
            # Some clients know this mistake by these words, which are OpenAI's, and not by its code.
            message = f"This model's maximum context length is {error.limit + 1} tokens: {error}"
            return invalid(message, param or "prompt", "context_length_exceeded")
        return invalid(str(error), param or "prompt", "invalid_prompt")
    return invalid(str(error), error.field)


def bad_option(error: ConfigError) -> ApiError:
    """A sampling parameter is out of bounds."""
    return invalid(f"{error.field} is {shown(error.value)}; it {error.limit}", error.field)


def unusable(error: ConfigError, name: str, param: str | None) -> ApiError:
    """What a client wrote at ``name`` breaks a rule, whatever the engine calls the place."""
    code = "nested_too_deeply" if isinstance(error, NestedTooDeeply) else "invalid_value"
    return invalid(f"{name} {error.limit}", param, code)


def failed(error: RequestError) -> ApiError:
    """A request ended in a way that leaves no answer."""
    if error.kind == TIMEOUT:
        return ApiError(504, error.message, kind=FAILED, code="queue_timeout", param="timeout")
    if error.kind == "refused":
        return invalid(error.message, error.field or None)
    if error.message.startswith(FORM_FAILED):
        return invalid(error.message, None, "structured_output_failed")
    return ApiError(500, error.message, kind=FAILED, code="generation_failed")


def install(app: FastAPI) -> None:
    """Have the application answer in this shape. What nobody foresaw is answered by ``server.edge``."""

    @app.exception_handler(ApiError)
    async def on_api_error(_: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_: Request, error: RequestValidationError) -> Response:
        return of_validation(error.errors()).response()

    signpost = Signpost(app.routes)

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        status, headers = HTTPStatus(error.status_code), dict(error.headers or {})
        message = f"{request.method} {request.url.path}: {status.phrase.lower()}"
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            message = signpost.advise(request.method, request.url.path)
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = ", ".join(signpost.methods(request.url.path))
        kind = INVALID if error.status_code < 500 else FAILED
        return ApiError(error.status_code, message, kind=kind, code=status.name.lower(), headers=headers).response()


_CODES = {"missing": "missing_required_parameter", "json_invalid": "invalid_json"}


def of_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first error of a body that does not fit, without the body's content."""
    first = errors[0]
    param = _path(first["loc"])
    message = str(first["msg"]).removeprefix("Value error, ")
    context = first.get("ctx", {})
    if first["type"] == "json_invalid":
        param, message = "", f"the body is not JSON: {context.get('error', '')}"
    elif first["type"] in ("unknown_parameter", "unsupported"):
        field = f"{param}.{context['name']}" if param else str(context["name"])
        return invalid(f"{param}: {message}" if param else message, field, first["type"])
    elif first["type"] == "missing" and not param:
        message = "the body is empty; it must be a JSON object"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    code = _CODES.get(first["type"], "invalid_type" if "type" in first["type"] else "invalid_value")
    return invalid(f"{param}: {message}{more}" if param else message + more, param or None, code)


def _path(place: Sequence[object]) -> str:
    """Where in the body, without the names of a union's members, which are written ``<...>``: "messages[0].role"."""
    parts = [part for part in place if not str(part).startswith("<")]
    parts = parts[1:] if parts[:1] in (["body"], ["path"], ["query"]) else parts
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")
