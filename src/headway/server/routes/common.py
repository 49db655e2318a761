"""What endpoints share: where the service is, and how bodies are read."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, cast

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

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
                content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if content_type != "application/json":
                    raise ApiError(
                        415,
                        f"the content type is {content_type!r}; it must be application/json",
                        code="unsupported_media_type",
                        param="Content-Type",
                    )
            return await handler(request)

        return handle
