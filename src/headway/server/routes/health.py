"""``/health``, ``/health/live`` and ``/health/ready``: 200 or 503, from the heartbeat alone."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from headway.server.json import json_response
from headway.server.routes.common import service_of

router = APIRouter(tags=["health"])


@router.get("/health")
@router.get("/health/ready")
@router.head("/health", include_in_schema=False)
@router.head("/health/ready", include_in_schema=False)
async def ready(request: Request) -> Response:
    """Whether new work should be sent here."""
    health = service_of(request).health()
    return json_response(health.body(), 200 if health.ready else 503)


@router.get("/health/live")
@router.head("/health/live", include_in_schema=False)
async def live(request: Request) -> Response:
    """Whether the process is worth keeping."""
    health = service_of(request).health()
    return json_response(health.body(), 200 if health.live else 503)
