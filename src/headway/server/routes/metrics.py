"""``/metrics`` for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from headway.server.prometheus import exposition
from headway.server.routes.common import service_of

router = APIRouter(tags=["metrics"])

# The plain format, whatever the client prefers: OpenMetrics keeps names that end in _total for counters, and a
# histogram that dashboards know is called iteration_tokens_total.
MEDIA_TYPE = "text/plain; version=0.0.4"


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """All metrics."""
    service = service_of(request)
    return Response(exposition(await service.engine.snapshot(), service), media_type=MEDIA_TYPE)
