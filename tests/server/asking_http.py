"""Requests to a service, all at once and in this process, and the events of a stream."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from partita.server.app import create_app
from partita.server.service import Service


def ask(service: Service, *requests: tuple[str, Any], **options: Any) -> list[httpx.Response]:
    """Answers to requests sent all at once: GET where there is no body, else POST of JSON or raw bytes."""

    async def all_of_them() -> list[httpx.Response]:
        transport = httpx.ASGITransport(create_app(service, **options))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=120) as client:

            async def one(path: str, body: Any) -> httpx.Response:
                if body is None:
                    return await client.get(path)
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                return await client.post(path, content=raw, headers={"content-type": "application/json"})

            return list(await asyncio.gather(*[one(*each) for each in requests]))

    return asyncio.run(all_of_them())


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The objects of a stream, which ends with [DONE]."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    parts = answer.text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]
