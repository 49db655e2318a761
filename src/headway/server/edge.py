"""What every call passes first: a name, a key, a limit for its body. Pure ASGI, so that streams are not held up.

Health is let through untouched: probes have no keys, and must get an answer whatever else goes wrong. So are the files
of the page: a browser that is pointed at them has no key to bring yet.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import uuid
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway.server.errors import INVALID, UNAUTHENTICATED, ApiError

REQUEST_ID = "headway.request_id"
OWNER = "headway.owner"
"""Keys of the scope: the call's name if the client chose one, and whose key it brought."""

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class KeyRing:
    """The API keys, as digests.

    Args:
        keys: none means that no key is needed.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        # Owners are made with a secret of this process, so that a trace that shows them gives no key away.
        secret = secrets.token_bytes(32)
        self._owners = [
            (self._digest(key), hashlib.blake2b(key.encode(), digest_size=8, key=secret).hexdigest()) for key in keys
        ]

    def owner(self, authorization: str | None) -> str:
        """Who brings this header; empty if no key is needed. Takes the same time whatever it holds.

        Raises:
            ApiError: it holds no key that is known.
        """
        if not self._owners:
            return ""
        scheme, _, key = (authorization or "").partition(" ")
        given = self._digest(key.strip() if scheme.lower() == "bearer" else "")
        found = ""
        for digest, owner in self._owners:
            if hmac.compare_digest(digest, given):
                found = owner
        if not found:
            raise ApiError(
                401,
                "this server needs an API key: Authorization: Bearer KEY",
                kind=UNAUTHENTICATED,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return found

    @staticmethod
    def _digest(key: str) -> bytes:
        return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class Edge:
    """The middleware.

    Args:
        app: what comes next.
        keys: the API keys.
        max_body_bytes: largest body.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], max_body_bytes: int) -> None:
        self._app = app
        self._keys = KeyRing(keys)
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given_id = headers.get("x-request-id")
        shown_id = given_id if given_id and _ID.fullmatch(given_id) else uuid.uuid4().hex
        named_send = _naming(send, scope, shown_id)
        try:
            scope[OWNER] = self._keys.owner(headers.get("authorization"))
            if given_id is not None and given_id != shown_id:
                raise ApiError(
                    400,
                    "X-Request-Id must be 1 to 128 letters, digits or ._:-",
                    code="invalid_request_id",
                    param="X-Request-Id",
                )
            self._check_length(headers.get("content-length"))
        except ApiError as error:
            await error.response()(scope, receive, named_send)
            return
        scope[REQUEST_ID] = given_id
        await self._app(scope, self._limited(receive), named_send)

    def _check_length(self, length: str | None) -> None:
        if length is not None and length.isdecimal() and int(length) > self._max_body_bytes:
            raise self._too_large()

    def _limited(self, receive: Receive) -> Receive:
        """The same, but a body that turns out too large is an error."""
        num_bytes = 0

        async def limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_body_bytes:
                raise self._too_large()
            return message

        return limited

    def _too_large(self) -> ApiError:
        return ApiError(
            413, f"the body has more than {self._max_body_bytes} bytes", kind=INVALID, code="body_too_large"
        )


def is_open(path: str) -> bool:
    """Whether a path needs no key: health, and the page, which holds nothing and asks for the key itself."""
    return path in ("/", "/health") or path.startswith(("/health/", "/page/"))


def call_name(scope: Scope, prefix: str) -> str:
    """The name of a generation call: the client's, or a new one."""
    name: Any = scope.get(REQUEST_ID)
    if name is None:
        name = scope[REQUEST_ID] = f"{prefix}-{uuid.uuid4().hex}"
    return str(name)


def _naming(send: Send, scope: Scope, shown_id: str) -> Send:
    """The same, but answers say which call they belong to."""

    async def naming(message: Message) -> None:
        if message["type"] == "http.response.start":
            name = scope.get(REQUEST_ID) or shown_id
            message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", name.encode())]}
        await send(message)

    return naming
