"""``/v1/completions`` and ``/v1/chat/completions``, and the abort of either."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from starlette.responses import Response

from headway.server.answers.chat import ChatAnswer
from headway.server.answers.completions import CompletionAnswer
from headway.server.edge import OWNER, call_name
from headway.server.protocol.chat import ChatBody
from headway.server.protocol.completions import CompletionBody
from headway.server.respond import GenerationResponse
from headway.server.routes.common import JsonRoute, off_loop, service_of
from headway.server.spec import chat_spec, completion_spec

router = APIRouter(route_class=JsonRoute, tags=["generation"])


@router.post("/v1/completions")
async def completions(body: Annotated[CompletionBody, Body()], request: Request) -> Response:
    """Continue one or several prompts."""
    service = service_of(request)
    defaults = service.engine.engine.sampling_defaults
    spec = await off_loop(
        request, completion_spec, body.with_defaults(defaults), service.options, service.max_model_len
    )
    name = call_name(request.scope, "cmpl")
    return GenerationResponse(service, spec, CompletionAnswer, name, request.scope[OWNER])


@router.post("/v1/chat/completions")
async def chat_completions(body: Annotated[ChatBody, Body()], request: Request) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    defaults = service.engine.engine.sampling_defaults
    spec = await off_loop(
        request, chat_spec, body.with_defaults(defaults), service.options, service.max_model_len, service.chats
    )
    name = call_name(request.scope, "chatcmpl")
    return GenerationResponse(service, spec, ChatAnswer, name, request.scope[OWNER])


@router.post("/v1/abort/{request_id}")
async def abort(request_id: str, request: Request) -> dict[str, Any]:
    """End an unfinished call of either kind; its answer ends with what there is."""
    service_of(request).abort(request_id, request.scope[OWNER])
    return {"id": request_id, "object": "abort", "aborted": True}
