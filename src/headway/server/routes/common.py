"""What endpoints share: where the service is, and how bodies are read."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, cast

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from headway.config.depth import MAX_JSON_DEPTH, too_deep
from headway.server import json
from headway.server.errors import ApiError
from headway.server.service import Service


def service_of(request: Request) -> Service:
    """The server's state."""
    return cast(Service, request.app.state.service)


class JsonRequest(Request):
    """A request whose body is read by the strict and fast parser."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = json.load(await self.body())
        return self._json


class JsonRoute(APIRoute):
    """An endpoint that takes JSON and nothing else.

    That the content type must say so also keeps web pages of other sites out: a browser lets them send this type only
    after it has asked, and is told yes for ``allowed_origins`` only.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            request = JsonRequest(request.scope, request.receive, request._send)
            if request.method == "POST" and await request.body():
                self._check_type(request)
                await self._check_depth(request)
            try:
                return await handler(request)
            except RecursionError as error:  # the limit keeps it from happening; if it does, the body is to blame
                raise _too_deep() from error

        return handle

    @staticmethod
    async def _check_depth(request: JsonRequest) -> None:
        try:
            value = await request.json()
        except json.JSONDecodeError:
            return  # the handler says so
        if too_deep(value):
            raise _too_deep()

    @staticmethod
    def _check_type(request: Request) -> None:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise ApiError(
                415,
                f"the content type is {content_type!r}; it must be application/json",
                code="unsupported_media_type",
                param="Content-Type",
            )


def _too_deep() -> ApiError:
    message = f"the body nests lists and objects more than {MAX_JSON_DEPTH} deep"
    return ApiError(400, message, code="nested_too_deeply")
