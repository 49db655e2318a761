"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from starlette.responses import Response

from headway.core.request import RequestRefused
from headway.server import errors
from headway.server.answers.tokens import token_text
from headway.server.json import json_response
from headway.server.protocol.tokens import DetokenizeBody, TokenizeBody
from headway.server.routes.common import JsonRoute, off_loop, service_of
from headway.server.spec import conversation

router = APIRouter(route_class=JsonRoute, tags=["tokens"])


@router.post("/tokenize")
async def tokenize(body: Annotated[TokenizeBody, Body()], request: Request) -> Response:
    """Token ids of a text or a conversation."""
    service = service_of(request)
    service.model(body.model or None)
    if (body.prompt is None) == (body.messages is None):
        raise errors.invalid("give either prompt or messages", "prompt")
    try:
        if body.messages is not None:
            prompt = await off_loop(request, conversation, body)
            tokens = await service.tokenising.tokens_of(prompt)
        else:
            special = body.add_special_tokens is not False
            tokens = await service.tokenising.tokens_of(body.prompt or "", add_special_tokens=special)
    except RequestRefused as refusal:
        raise errors.refused(refusal, "prompt" if body.messages is None else "messages") from refusal

    def answer() -> Response:
        found: dict[str, Any] = {"count": len(tokens), "max_model_len": service.max_model_len, "tokens": tokens}
        if body.return_token_strs:
            found["token_strs"] = [token_text(service.tokenising.bytes_of(token)) for token in tokens]
        return json_response(found)

    return await off_loop(request, answer)


@router.post("/detokenize")
async def detokenize(body: Annotated[DetokenizeBody, Body()], request: Request) -> dict[str, Any]:
    """Text of token ids."""
    service = service_of(request)
    service.model(body.model or None)
    last = service.engine.engine.vocab_size - 1

    def outside() -> int | None:
        return next((token for token in body.tokens if not 0 <= token <= last), None)

    wrong = await off_loop(request, outside)
    if wrong is not None:
        raise errors.invalid(f"tokens has {wrong}; ids go from 0 to {last}", "tokens")
    try:
        (text,) = await service.tokenising.texts_of([body.tokens], skip_special_tokens=bool(body.skip_special_tokens))
    except RequestRefused as refusal:
        raise errors.refused(refusal, "tokens") from refusal
    return {"prompt": text}
