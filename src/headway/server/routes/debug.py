"""``/debug/requests``, ``/debug/requests/{id}`` and ``/debug/state``: why a request waits, and all there is to see."""

from __future__ import annotations

import gzip
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from headway.server import debug, json
from headway.server.errors import ApiError, shown
from headway.server.routes.common import service_of
from headway.server.state import server_state

router = APIRouter(prefix="/debug", tags=["debug"])

COMPRESS_BYTES = 32 * 1024
"""Larger answers are compressed, if the client can read that: a fragmented pool has long runs of numbers."""


@router.get("/requests")
async def requests(
    request: Request, limit: Annotated[int, Query(ge=1, le=debug.MAX_REQUESTS)] = debug.MAX_REQUESTS
) -> Response:
    """All unfinished requests that the engine has, with their reasons."""
    service = service_of(request)
    view = debug.RequestView(await service.engine.snapshot(), service)
    return _answer(request, view.all(limit))


@router.get("/requests/{request_id:path}")
async def one_request(request_id: str, request: Request) -> Response:
    """The requests of one call."""
    if request_id.endswith("/") or not request_id:
        raise HTTPException(404)  # a slash too many, which the answer says
    service = service_of(request)
    found = debug.RequestView(await service.engine.snapshot(), service).of_call(request_id)
    if found is None:
        raise ApiError(404, f"there is no unfinished request {shown(request_id)}", code="request_not_found")
    return _answer(request, found)


@router.get("/state")
async def state(request: Request) -> Response:
    """Queues, rows, blocks, the last steps, latencies."""
    service = service_of(request)
    return _answer(request, server_state(await service.engine.snapshot(), service))


def _answer(request: Request, value: Any) -> Response:
    body, headers = json.dump(value), {"Cache-Control": "no-store"}
    if len(body) > COMPRESS_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
        body = gzip.compress(body, compresslevel=1)
        headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(body, headers=headers, media_type="application/json")
