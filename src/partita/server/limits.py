"""Who may ask, and how much they may send."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Sequence

from fastapi import Header
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from partita.server.errors import ApiError


def key_checker(keys: Sequence[str]) -> Callable[..., Awaitable[None]]:
    """A dependency that raises ApiError (401) for requests that bring none of these keys."""

    async def check(authorization: str | None = Header(None)) -> None:
        if not keys:
            return
        given = (authorization or "").removeprefix("Bearer ").encode()
        if not any(hmac.compare_digest(given, key.encode()) for key in keys):
            headers = {"WWW-Authenticate": "Bearer"}
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key", headers=headers)

    return check


class BodyLimit:
    """Refuses a body of more than `most_bytes` with 413, and reads no more of it."""

    def __init__(self, app: ASGIApp, most_bytes: int):
        self.app, self.most_bytes = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        stated = dict(scope["headers"]).get(b"content-length", b"0")
        if not stated.isdigit() or int(stated[:20]) > self.most_bytes:
            await self._refuse(send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.most_bytes:
                raise HTTPException(413, self._message)
            return message

        await self.app(scope, counted, send)

    @property
    def _message(self) -> str:
        return f"a body may have {self.most_bytes:,} bytes"

    async def _refuse(self, send: Send) -> None:
        body = json.dumps(ApiError(413, self._message).body()).encode()
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})
