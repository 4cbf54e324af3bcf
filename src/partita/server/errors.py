"""Errors in OpenAI's shape: one object that says what is wrong, and with which field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from partita.errors import InputError, NotFiniteError, one_line
from partita.server.generation import Busy, Failed, Stopping, TimedOut

_FIELDS = {"context": "max_tokens", "prompt-ids": "prompt"}
"""Fields of the engine's errors that have another name in a request."""


_MEMBERS = ("str", "int", "bool", "float", "dict", "list")
"""Members of unions, which an error's place names too."""


class ErrorDetail(BaseModel):
    """What is wrong, and the field it is in."""

    message: str
    type: str
    param: str | None = None
    code: str | int | None = None


class ErrorAnswer(BaseModel):
    """An error, in the shape of OpenAI's API."""

    error: ErrorDetail


class ApiError(Exception):
    """Is answered with `status` and a body in OpenAI's shape."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        detail = ErrorDetail(message=self.message, type=_type(self.status), param=self.param, code=self.code)
        return {"error": detail.model_dump()}


def api_error(error: Exception) -> ApiError:
    """How an error is answered that a request met on its way."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InputError):
        param = _FIELDS.get(error.field, error.field)
        code = "context_length_exceeded" if error.field == "context" else None
        return ApiError(400, one_line(error), param, code)
    if isinstance(error, Busy):
        return ApiError(429, str(error), code="queue_full", headers={"Retry-After": str(error.seconds)})
    if isinstance(error, Stopping):
        return ApiError(503, str(error), code="stopping")
    if isinstance(error, TimedOut):
        return ApiError(408, str(error), code="timeout")
    if isinstance(error, NotFiniteError | Failed):
        return ApiError(500, one_line(error))
    return ApiError(500, f"internal error: {one_line(f'{type(error).__name__}: {error}')}")


def invalid_body(errors: Sequence[Any]) -> ApiError:
    """How a body is answered that pydantic found these errors in, placed as FastAPI does: ("body", ...)."""
    place = "body" if errors[0]["type"] == "json_invalid" else _place(errors[0]["loc"])
    wrong = [each["msg"] for each in errors if _place(each["loc"]) in (place, "body")]
    return ApiError(400, f"{place}: {', or: '.join(dict.fromkeys(wrong))}", place)


def add_handlers(app: FastAPI) -> None:
    """Has every error of an application answered in OpenAI's shape."""

    async def answered(_: Request, error: Exception) -> JSONResponse:
        found = api_error(error)
        return JSONResponse(found.body(), found.status, found.headers)

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        found = invalid_body(error.errors())
        return JSONResponse(found.body(), found.status)

    async def http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        param = "body" if error.status_code == 400 else None  # which is all that is read before a route
        found = ApiError(error.status_code, str(error.detail), param, headers=error.headers)
        return JSONResponse(found.body(), found.status, found.headers)

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    for kind in (ApiError, InputError, Busy, Stopping, TimedOut, Failed, NotFiniteError, Exception):
        app.add_exception_handler(kind, answered)


def _type(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def _place(parts: Sequence[str | int]) -> str:
    """Where in a body: `messages[0].content`, without the names of a union's members."""
    found = ""
    for part in parts[1:]:
        if isinstance(part, int):
            found += f"[{part}]"
        elif part.isidentifier() and part not in _MEMBERS:
            found += f".{part}" if found else part
    return found or "body"
