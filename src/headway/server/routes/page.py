"""The page for operators: files of this package, nothing from outside, no secrets in them."""

from __future__ import annotations

import hashlib
from importlib import resources

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

router = APIRouter(include_in_schema=False)

MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Whatever a request or a model may say, a browser runs and loads nothing on this page but its own files."""


def _load() -> dict[str, tuple[bytes, str, str]]:
    """Name -> content, media type and tag of every file."""
    files = {}
    for file in (resources.files("headway.server") / "page").iterdir():
        kind = file.name.rpartition(".")[2]
        if kind in MEDIA_TYPES:
            content = file.read_bytes()
            files[file.name] = (content, MEDIA_TYPES[kind], f'"{hashlib.blake2b(content, digest_size=8).hexdigest()}"')
    return files


FILES = _load()


@router.get("/")
async def index(request: Request) -> Response:
    """The page itself."""
    return _answer(request, "index.html")


@router.get("/page/{name}")
async def file(name: str, request: Request) -> Response:
    """One of its files."""
    if name not in FILES:
        raise HTTPException(404)
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    content, media_type, tag = FILES[name]
    headers = {**HEADERS, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)
