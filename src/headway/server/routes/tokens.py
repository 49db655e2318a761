"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request

from headway.core.request import RequestRefused
from headway.server import errors
from headway.server.answers.tokens import token_text
from headway.server.protocol.tokens import DetokenizeBody, TokenizeBody
from headway.server.routes.common import JsonRoute, service_of
from headway.server.spec import conversation

router = APIRouter(route_class=JsonRoute, tags=["tokens"])


@router.post("/tokenize")
async def tokenize(body: Annotated[TokenizeBody, Body()], request: Request) -> dict[str, Any]:
    """Token ids of a text or a conversation."""
    service = service_of(request)
    service.model(body.model or None)
    if (body.prompt is None) == (body.messages is None):
        raise errors.invalid("give either prompt or messages", "prompt")
    try:
        if body.messages is not None:
            tokens = await service.tokenising.tokens_of(conversation(body.messages))
        else:
            special = body.add_special_tokens is not False
            tokens = await service.tokenising.tokens_of(body.prompt or "", add_special_tokens=special)
    except RequestRefused as refusal:
        raise errors.refused(refusal, "prompt" if body.messages is None else "messages") from refusal
    answer: dict[str, Any] = {"count": len(tokens), "max_model_len": service.max_model_len, "tokens": tokens}
    if body.return_token_strs:
        answer["token_strs"] = [token_text(service.tokenising.bytes_of(token)) for token in tokens]
    return answer


@router.post("/detokenize")
async def detokenize(body: Annotated[DetokenizeBody, Body()], request: Request) -> dict[str, Any]:
    """Text of token ids."""
    service = service_of(request)
    service.model(body.model or None)
    outside = [token for token in body.tokens if not 0 <= token < service.engine.engine.vocab_size]
    if outside:
        last = service.engine.engine.vocab_size - 1
        raise errors.invalid(f"tokens has {outside[0]}; ids go from 0 to {last}", "tokens")
    try:
        text = await service.tokenising.text_of(body.tokens, skip_special_tokens=bool(body.skip_special_tokens))
    except RequestRefused as refusal:
        raise errors.refused(refusal, "tokens") from refusal
    return {"prompt": text}
