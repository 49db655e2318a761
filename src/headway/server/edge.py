"""What every call passes first: a name, a key, a limit for its body. Pure ASGI, so that streams are not held up.

Health is let through untouched: probes have no keys, and must get an answer whatever else goes wrong. So are the files
of the page: a browser that is pointed at them has no key to bring yet.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import uuid
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway.server.errors import FAILED, INVALID, UNAUTHENTICATED, ApiError

logger = logging.getLogger(__name__)

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
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send, scope)
        try:
            if not is_open(scope["path"]):
                receive = self._let_in(scope, receive, answer)
            await self._app(scope, receive, answer.send)
        except ApiError as error:
            await error.response()(scope, receive, answer.send)
        except ClientDisconnect:
            logger.debug("%s %s: the client left before its body was here", scope["method"], scope["path"])
        except Exception as error:
            if answer.begun:
                raise
            # Not for uvicorn, which would close the connection without telling the client so.
            logger.exception("%s %s failed", scope["method"], scope["path"])
            failure = ApiError(500, f"the server failed: {type(error).__name__}", kind=FAILED, code="internal_error")
            await failure.response()(scope, receive, answer.send)

    def _let_in(self, scope: Scope, receive: Receive, answer: _Answer) -> Receive:
        """Check what a call brings; where to receive its body from.

        Raises:
            ApiError: it may not come in.
        """
        headers = Headers(scope=scope)
        given_id = headers.get("x-request-id")
        is_good_id = given_id is not None and _ID.fullmatch(given_id) is not None
        answer.name = given_id if is_good_id and given_id is not None else uuid.uuid4().hex
        scope[OWNER] = self._keys.owner(headers.get("authorization"))
        if given_id is not None and not is_good_id:
            message = "X-Request-Id must be 1 to 128 letters, digits or ._:-"
            raise ApiError(400, message, code="invalid_request_id", param="X-Request-Id")
        self._check_length(headers.get("content-length"))
        scope[REQUEST_ID] = given_id
        return self._limited(receive)

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


class _Answer:
    """The way of an answer out; it says which call it belongs to.

    Attributes:
        name: shown if the call gets no name of its own.
        begun: whether the status line is out.
    """

    def __init__(self, send: Send, scope: Scope) -> None:
        self._send = send
        self._scope = scope
        self.name = ""
        self.begun = False

    async def send(self, message: Message) -> None:
        """Pass it on."""
        if message["type"] == "http.response.start":
            self.begun = True
            name = self._scope.get(REQUEST_ID) or self.name
            if name:
                message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", name.encode())]}
        await self._send(message)
