"""The application: a service, its routes, and what every call passes first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from headway.server import errors
from headway.server.edge import Edge
from headway.server.respond import WARNING
from headway.server.routes import debug, generation, health, metrics, models, page, tokens
from headway.server.service import Service
from headway.version import __version__

ROUTERS = (
    generation.router,
    models.router,
    tokens.router,
    health.router,
    metrics.router,
    debug.router,
    page.router,
)


def create_app(service: Service) -> FastAPI:
    """The ASGI application of a server; the engine starts and stops with it.

    Args:
        service: what the routes share.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="Headway",
        version=__version__,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # FastAPI's pages load their scripts from outside
        redoc_url=None,
    )
    app.state.service = service
    for router in ROUTERS:
        app.include_router(router)
    errors.install(app)
    options = service.options
    app.add_middleware(Edge, keys=options.api_key, max_body_bytes=options.max_body_bytes)
    if options.allowed_origins:
        # Outermost: a preflight brings no key, and a page may read errors too, whoever answers them.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.allowed_origins,
            allow_methods=options.allowed_methods,
            allow_headers=options.allowed_headers,
            expose_headers=("X-Request-Id", "Retry-After", WARNING),
        )
    return app
