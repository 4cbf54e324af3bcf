"""A line of JSON in the log for every request, with an id that the answer carries too."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOG = logging.getLogger("partita.server")
_HEADER = b"x-request-id"
_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestLog:
    """Takes the client's `X-Request-Id`, or makes one; health checks and scrapes are not logged."""

    _QUIET = ("/health", "/metrics")

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(_HEADER, b"")
        number = given if _ID.fullmatch(given) else secrets.token_hex(8).encode()
        began, status = time.monotonic(), 0

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (_HEADER, number)]
            await send(message)

        try:
            await self.app(scope, receive, named)
        finally:
            if scope["path"] not in self._QUIET:
                line = {
                    "request_id": number.decode(),
                    "method": scope["method"],
                    "path": scope["path"],
                    "status": status,
                    "seconds": round(time.monotonic() - began, 4),
                }
                LOG.info(json.dumps(line))
