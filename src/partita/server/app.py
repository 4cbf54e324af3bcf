"""The routes: OpenAI's API, and what operators and vLLM's clients ask for beside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Sequence
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from partita.errors import InputError
from partita.server.answers import ChatCompletion, Choice, Completion
from partita.server.bodies import ChatBody, CompletionBody, DetokenizeBody, GenerateBody, TokenizeBody
from partita.server.errors import ApiError, ErrorAnswer, add_handlers, api_error
from partita.server.limits import BodyLimit, key_checker
from partita.server.request_log import RequestLog
from partita.server.service import Answering, Service

_ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorAnswer, "description": text}
    for code, text in {
        400: "What is asked for is wrong; `param` names the field.",
        401: "The API key is missing or wrong.",
        404: "The model is not the one that is served.",
        408: "The request took longer than the server allows.",
        413: "The body is larger than the server reads.",
        429: "The queue is full; `Retry-After` says when to come again.",
        500: "A step failed; the server goes on.",
        503: "The server is starting or stopping.",
    }.items()
}


class Health(BaseModel):
    """Whether the server takes requests, and its engine's thread is alive."""

    live: bool
    ready: bool


class TokenIds(BaseModel):
    """Token ids of a text, how many, and how many a request may have with its output."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class Text(BaseModel):
    """The text of token ids."""

    prompt: str


def create_app(service: Service, api_keys: Sequence[str] = (), most_bytes: int = 2**24) -> FastAPI:
    """The application that serves one model.

    api_keys: any of which a request must bring; none where empty. most_bytes: of a body.
    """
    app = FastAPI(
        title="Partita",
        version=version("partita"),
        description="OpenAI-compatible inference of one model, split over chips as it was planned.",
        openapi_url="/openapi.json",
    )
    add_handlers(app)
    app.add_middleware(BodyLimit, most_bytes=most_bytes)
    app.add_middleware(RequestLog)
    app.state.service = service
    about = {"id": service.name, "object": "model", "created": 0, "owned_by": "partita"}
    guarded = {"dependencies": [Depends(key_checker(api_keys))], "responses": _ERRORS}

    @app.post(
        "/v1/completions",
        response_model=Completion,
        response_model_exclude_none=True,
        summary="Go on from a text or token ids",
        **guarded,
    )
    async def completions(body: CompletionBody, request: Request) -> Any:
        return await _answer(service, request, body)

    @app.post(
        "/v1/chat/completions",
        response_model=ChatCompletion,
        summary="Answer a chat",
        **guarded,
    )
    async def chat(body: ChatBody, request: Request) -> Any:
        return await _answer(service, request, body)

    @app.get("/v1/models", summary="The model that is served", **guarded)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [about | {"max_model_len": service.loop.context}]}

    @app.get("/v1/models/{model}", summary="The same by its name", **guarded)
    async def model(model: str) -> dict[str, Any]:
        service.check_model(model)
        return about

    @app.post("/tokenize", response_model=TokenIds, summary="The token ids of a text or a chat", **guarded)
    async def tokenize(body: TokenizeBody) -> TokenIds:
        service.check_model(body.model)
        if body.prompt is not None and body.messages is None:
            ids = await run_in_threadpool(service.needs_tokenizer("prompt").encode, body.prompt)
        elif body.messages is not None and body.prompt is None:
            given = ChatBody(
                messages=body.messages, tools=body.tools, chat_template_kwargs=body.chat_template_kwargs
            )
            ids = await service.chat_ids(given)
        else:
            raise InputError("prompt", None, "give prompt or messages")
        texts = [service.text_of(token) for token in ids] if body.return_token_strs else None
        return TokenIds(tokens=ids, count=len(ids), max_model_len=service.loop.context, token_strs=texts)

    @app.post("/detokenize", response_model=Text, summary="The text of token ids", **guarded)
    async def detokenize(body: DetokenizeBody) -> Text:
        service.check_model(body.model)
        tokenizer = service.needs_tokenizer("tokens")
        text = await run_in_threadpool(tokenizer.decode, body.tokens, True)
        return Text(prompt=text)

    @app.get("/health", response_model=Health, summary="Live, and ready for requests", responses=_ERRORS)
    async def health() -> JSONResponse:
        found = _health(service)
        return JSONResponse(found.model_dump(), 200 if found.live and found.ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse, summary="Metrics in Prometheus's format")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(service.loop.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/version", summary="The version of Partita")
    async def versions() -> dict[str, str]:
        return {"version": version("partita")}

    @app.get("/plan", summary="What was planned, and what is measured", **guarded)
    async def plan() -> dict[str, Any]:
        engine, loop = service.loop.engine, service.loop
        return {
            "model": engine.model.name,
            "mesh": str(engine.mesh),
            "layouts": {phase: str(roles) for phase, roles in engine.roles.items()},
            "formats": engine.formats.model_dump(),
            "slots": loop.capacity.slots,
            "context": loop.context,
            "planned": service.plan,
            "measured": loop.metrics.measured(),
        }

    return app


def _health(service: Service) -> Health:
    loop = service.loop
    return Health(live=loop.error is None, ready=loop.ready.is_set() and not loop.stopping)


async def _answer(service: Service, request: Request, body: GenerateBody) -> BaseModel | StreamingResponse:
    answering = await service.begin(body, request.headers.get("authorization", ""))
    writer = service.writer(body)
    if body.streams:
        pieces = _streamed(answering, writer, body.usage_at_the_end)
        return _EventStream(answering, pieces)
    await _unless_gone(request, answering.collect())
    return writer.whole(answering.choices, answering.usage())


class _EventStream(StreamingResponse):
    """Server-sent events of an answer, of which nothing is left when nobody reads them any more."""

    def __init__(self, answering: Answering, events: AsyncIterator[str]):
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._answering = answering

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # also where the client had gone before the first of them
            if self._answering.open:
                self._answering.cancel()


async def _unless_gone(request: Request, work: Awaitable[None]) -> None:
    """Waits for work, or cancels it where the client goes away. Raises what the work does."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
    gone.cancel()
    if not task.done():
        task.cancel()
        raise ApiError(499, "the client has gone")
    await task


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _streamed(answering: Answering, writer: Any, with_usage: bool) -> AsyncIterator[str]:
    """Server-sent events: the pieces, the usage where that is asked for, and `[DONE]`."""
    started: set[int] = set()
    try:
        async for index, piece in answering.pieces():
            choice = answering.choices[index]
            first = index not in started
            started.add(index)
            shown = Choice(index, choice.text if first else "")  # the prompt, where that is echoed
            shown.add(piece)
            shown.offsets = [len(choice.text)] if shown.tokens else []
            choice.add(piece)
            written = writer.piece(shown, first)
            if written is not None:
                yield _event(written)
        if with_usage:
            yield _event(writer.last(answering.usage()))
    except Exception as error:
        yield f"data: {json.dumps(api_error(error).body())}\n\n"
    yield "data: [DONE]\n\n"


def _event(found: BaseModel) -> str:
    return f"data: {found.model_dump_json(exclude_none=True)}\n\n"
