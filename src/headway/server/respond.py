"""Answers a generation call over ASGI: whole or as a stream, and never for a client that has gone.

The status line is sent with the first news, so a call that fails before its first token has a status of its own, also
when it asked for a stream. Once a stream has begun, errors are an event of it. Every stream that began ends with
``[DONE]``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway.engine.outputs import RequestOutput
from headway.server import errors, sse
from headway.server.answers.base import Answer
from headway.server.call import Call, Updates
from headway.server.errors import ApiError
from headway.server.json import json_response
from headway.server.service import Service
from headway.server.spec import CallSpec

WARNING = "X-Headway-Warning"
MAX_WARNINGS = 5
"""So many are written out."""

MakeAnswer = Callable[[CallSpec, str, str, Callable[[int], bytes], frozenset[int]], Answer]


class GenerationResponse(Response):
    """The answer to a call. The call is opened when the answer is sent, so nothing can be lost in between.

    Args:
        service: of the server.
        spec: what the call asks for.
        make_answer: how it looks.
        request_id, owner: of the call.
    """

    def __init__(self, service: Service, spec: CallSpec, make_answer: MakeAnswer, request_id: str, owner: str) -> None:
        super().__init__()
        self._service = service
        self._spec = spec
        self._request_id = request_id
        self._owner = owner
        tokenizer = service.engine.engine.tokenizer
        self._answer = make_answer(
            spec,
            request_id,
            service.model(spec.model),
            service.tokenising.bytes_of,
            tokenizer.special_token_ids if tokenizer is not None else frozenset(),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            call = self._service.open(self._spec, self._request_id, self._owner)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        work = (
            self._stream(call, scope, receive, send) if self._spec.stream else self._whole(call, scope, receive, send)
        )
        try:
            await unless_disconnected(receive, work)
        finally:
            call.close()

    async def _start(self, call: Call, *, final_only: bool) -> None:
        texts = await call.start(final_only=final_only)
        self._answer.set_prompts(texts, call.prompts, reasoning_is_open=call.reasoning_is_open)

    async def _whole(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._start(call, final_only=True)
            outputs: dict[int, RequestOutput] = {}
            while (updates := await call.take()) is not None:
                outputs.update(_outputs(updates))
            response = await self._written([outputs[index] for index in sorted(outputs)])
        except ApiError as error:
            response = error.response()
        call.close()  # before the client can know that it has ended: it may use the id again
        await response(scope, receive, send)

    async def _written(self, outputs: Sequence[RequestOutput]) -> Response:
        """A whole answer; a large one is made off the event loop."""

        def write() -> Response:
            return json_response(self._answer.whole(outputs), headers=self._warnings())

        return await self._service.offload.run(self._answer.num_bytes(outputs), write)

    def _warnings(self) -> dict[str, str]:
        """A header that says what of the output's schema is not kept to, if there is anything."""
        form = self._spec.sampling.structured
        annotations = form.annotations if form is not None else ()
        if not annotations:
            return {}
        said = "; ".join(map(str, annotations[:MAX_WARNINGS]))
        more = f"; and {len(annotations) - MAX_WARNINGS} more" if len(annotations) > MAX_WARNINGS else ""
        return {WARNING: "".join(char if " " <= char <= "~" else "?" for char in said + more)}

    async def _stream(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        outputs: dict[int, RequestOutput] = {}
        keep_alive_s = self._service.options.keep_alive
        begun = False
        try:
            await self._start(call, final_only=False)
            while (updates := await call.take(keep_alive_s)) is not None:
                outputs.update(_outputs(updates))
                chunks = [chunk for index, update in updates for chunk in self._answer.chunks(index, update)]
                if not begun:
                    begun = True
                    await _begin(send, self._warnings())
                if chunks or not updates:
                    await _send(send, sse.events(chunks) if chunks else sse.COMMENT)
            usage = []
            if self._spec.include_usage:
                usage.append(self._answer.usage_chunk([outputs[index] for index in sorted(outputs)]))
            call.close()
            await _send(send, sse.events(usage) + sse.DONE, last=True)
        except ApiError as error:
            call.close()
            if begun:
                await _send(send, sse.events([error.body]) + sse.DONE, last=True)
            else:
                await error.response()(scope, receive, send)


def _outputs(updates: Updates) -> dict[int, RequestOutput]:
    """The whole outputs among the updates.

    Raises:
        ApiError: one of them is no answer.
    """
    found = {}
    for index, update in updates:
        if update.output is None:
            continue
        found[index] = output = update.output
        if output.error is not None and output.finish_reason in ("error", "refused", "abort"):
            raise errors.failed(output.error)
    return found


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, but give it up as soon as the client is gone."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.wait((working, watching))
    if not watching.cancelled():
        watching.exception()  # a connection that broke in another way is gone as well
    if not working.cancelled():
        working.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _begin(send: Send, more: Mapping[str, str]) -> None:
    headers = {"Content-Type": sse.MEDIA_TYPE, **sse.HEADERS, **more}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": raw})


async def _send(send: Send, body: bytes, *, last: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not last})
