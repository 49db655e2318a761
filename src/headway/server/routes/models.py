"""``/v1/models`` and ``/version``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException

from headway.server.routes.common import service_of
from headway.server.service import Service
from headway.version import __version__

router = APIRouter(tags=["models"])


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """All names of the model."""
    service = service_of(request)
    return {"object": "list", "data": [_model(service, name) for name in service.models]}


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> dict[str, Any]:
    """One of them."""
    service = service_of(request)
    if (name.endswith("/") and name.rstrip("/") in service.models) or not name:
        raise HTTPException(404)  # a slash too many, which the answer says
    return _model(service, service.model(name))


@router.get("/version")
async def version() -> dict[str, str]:
    """The server's version."""
    return {"version": __version__}


def _model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "headway",
        "max_model_len": service.max_model_len,
    }
