"""What endpoints share: where the service is, and how bodies are read."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, cast

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from headway.config.depth import NestedTooDeeply
from headway.server import json
from headway.server.errors import ApiError, shown, unusable
from headway.server.service import Service

P = ParamSpec("P")
R = TypeVar("R")


def service_of(request: Request) -> Service:
    """The server's state."""
    return cast(Service, request.app.state.service)


async def off_loop(request: Request, work: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
    """What ``work`` makes of the request's body: on the spot for a small one, in a thread for a large one."""
    num_bytes = len(await request.body())
    return await service_of(request).offload.run(num_bytes, work, *args, **options)


class JsonRequest(Request):
    """A request whose body was read already, by :class:`JsonRoute`."""

    async def json(self) -> Any:
        return self._json


class JsonRoute(APIRoute):
    """An endpoint that takes JSON and nothing else, read and checked off the event loop where that takes long.

    That the content type must say so also keeps web pages of other sites out: a browser lets them send this type only
    after it has asked, and is told yes for ``allowed_origins`` only.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            request = JsonRequest(request.scope, request.receive, request._send)
            if request.method == "POST" and await request.body():
                self._check_type(request)
                limit = service_of(request).options.max_body_values
                request._json = await off_loop(request, self._read, await request.body(), limit)
            try:
                return await handler(request)
            except RecursionError as error:  # the limit keeps it from happening; if it does, the body is to blame
                raise unusable(NestedTooDeeply("the body"), "the body", None) from error

        return handle

    def _read(self, body: bytes, max_values: int) -> Any:
        """The value of a body, as what the endpoint declares if it declares something.

        Raises:
            ApiError: it is too large or too deep for anything.
            RequestValidationError: it is not JSON, or not what the endpoint takes.
        """
        if body.count(b",") >= max_values:  # in texts they count too, which only means that long ones are told so
            message = f"the body has more than {max_values} values"
            raise ApiError(413, message, code="body_too_large")
        try:
            value = json.load(body)
        except NestedTooDeeply as error:
            raise unusable(error, error.field, None) from error
        except json.JSONDecodeError as error:
            mistake = {"type": "json_invalid", "loc": ("body", error.pos), "msg": "", "ctx": {"error": error.msg}}
            raise RequestValidationError([mistake]) from error
        if self.body_field is None:
            return value
        checked, mistakes = self.body_field.validate(value, {}, loc=("body",))
        if mistakes:
            raise RequestValidationError(mistakes)
        return checked

    @staticmethod
    def _check_type(request: Request) -> None:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise ApiError(
                415,
                f"the content type is {shown(content_type)}; it must be application/json",
                code="unsupported_media_type",
                param="Content-Type",
            )
