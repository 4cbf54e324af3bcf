"""Batches of requests from a file, in OpenAI's format: a JSON object a line in, and a JSON object a line out.

Answers are written as they come, each whole, with the number of its line. So what a run that was stopped has
written, however it was, says what is left for the next one: every line is answered exactly once.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from partita.errors import InputError
from partita.server.bodies import ChatBody, CompletionBody, GenerateBody
from partita.server.errors import ApiError, api_error, invalid_body
from partita.server.generation import Failed, Stopping
from partita.server.service import Service

_BODIES: dict[str, type[GenerateBody]] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
}
_LONGEST = 2**24
"""Bytes of a line that are read at most, as of a body."""
_TRIES = 3
"""How often a request is put to an engine whose step fails under it."""


class BadLine(Exception):
    """A line that is no request of a batch."""


@dataclass(frozen=True)
class Line:
    """A request: the number of its line, from 1, what it is called, and its body."""

    number: int
    custom_id: str
    body: GenerateBody


@dataclass
class Tally:
    """Lines that have been answered, all and those with an error, and that there are."""

    done: int = 0
    errors: int = 0
    lines: int = 0


class AnswerFile:
    """The file of answers, of which nothing but whole lines is left behind.

    Raises InputError (field "out") where it cannot be written, another run writes it, or it is no such file.
    """

    def __init__(self, path: Path):
        self.path = path
        self.known: dict[int, str | None] = {}
        """What the answered lines are called, by their number."""
        self.errors = 0
        with self._writing():
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._lock()
            self._end = self._read()
        except BaseException:
            os.close(self._file)
            raise

    def _writing(self) -> _AsInput:
        return _AsInput(self.path)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError("out", self.path, "is being written by another run") from None

    def _read(self) -> int:
        """Reads the records that are there; where the last whole one ends. What is behind it is cut off."""
        end, number = 0, 0
        with self._writing(), open(self.path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                if not raw.endswith(b"\n"):
                    break  # a run was stopped while it wrote this
                try:
                    record = json.loads(raw)
                    line, name, response = record["line"], record["custom_id"], record["response"]
                    failed = response is None or response["status_code"] != 200
                except (ValueError, KeyError, TypeError):
                    message = f"line {number} is no answer of a batch; give a file that this command wrote"
                    raise InputError("out", self.path, message) from None
                self.known[line] = name
                self.errors += failed
                end += len(raw)
        with self._writing():
            os.ftruncate(self._file, end)
        return end

    def write(self, record: dict[str, Any]) -> None:
        """Raises InputError where there is no room for it; the file then ends with the record before."""
        raw = (json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n").encode(errors="replace")
        written = 0
        try:
            with self._writing():
                while written < len(raw):
                    written += os.pwrite(self._file, raw[written:], self._end + written)
        except InputError:
            os.ftruncate(self._file, self._end)
            raise
        self._end += len(raw)
        self.known[record["line"]] = record["custom_id"]

    def close(self) -> None:
        with self._writing():
            os.fsync(self._file)
            os.close(self._file)


class _AsInput:
    """While it lasts, an OSError is an InputError (field "out")."""

    def __init__(self, path: Path):
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, frames: object) -> None:
        if isinstance(error, OSError):
            message = f"cannot be written: {error.strerror or error}; run it again to go on"
            raise InputError("out", self.path, message) from None


def count_lines(path: Path) -> int:
    """Lines that are not empty. Raises InputError (field "in") for a file that cannot be read."""
    return sum(1 for _ in _lines(path))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, by their number from 1, cut after what is read of one."""
    try:
        with open(path, "rb") as file:
            number = 0
            while raw := file.readline(_LONGEST + 1):
                number += 1
                rest = raw
                while len(rest) > _LONGEST and not rest.endswith(b"\n"):
                    rest = file.readline(_LONGEST + 1)
                if raw.strip():
                    yield number, raw
    except OSError as error:
        raise InputError("in", path, f"cannot be read: {error.strerror or error}") from None


def read_line(number: int, raw: bytes) -> tuple[str | None, Line | ApiError]:
    """What a line is called and asks for, or how its body is answered. Raises BadLine for one that is no
    request."""
    if len(raw) > _LONGEST:
        raise BadLine(f"has more than {_LONGEST:,} bytes")
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadLine("must be an object with custom_id, method, url and body")
    name = found.get("custom_id")
    if not isinstance(name, str):
        raise BadLine("needs a text custom_id")
    if found.get("method", "POST") != "POST" or found.get("url") not in _BODIES:
        return name, ApiError(400, f"method POST and a url of {', '.join(_BODIES)} are accepted", "url")
    try:
        body = _BODIES[found["url"]].model_validate(found.get("body"))
    except ValidationError as error:
        return name, invalid_body([{**each, "loc": ("body", *each["loc"])} for each in error.errors()])
    if body.streams:
        return name, ApiError(400, "stream: a batch is answered whole; leave it out", "stream")
    return name, Line(number, name, body)


async def run_batch(
    service: Service, path: Path, answers: AnswerFile, tell: Callable[[Tally], None], lines: int
) -> Tally:
    """Answers the lines of a file that have no answer yet, as many at once as keep all slots busy.

    Raises InputError: field "in" for a file that cannot be read, or that is not the one which `answers` were
    begun for, "out" where no more can be written; and what the engine's thread ended by.
    """
    tally = Tally(len(answers.known), answers.errors, lines)
    names: dict[str, int] = {}
    todo = _lines(path)

    async def work() -> None:
        for number, raw in todo:  # of which each worker takes the next
            record = await _record(service, number, raw, names, answers)
            if record is None:
                continue
            answers.write(record)
            response = record["response"]
            tally.done += 1
            tally.errors += response is None or response["status_code"] != 200
            tell(tally)

    tell(tally)
    workers = [asyncio.ensure_future(work()) for _ in range(2 * service.loop.capacity.slots)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return tally


async def _record(
    service: Service, number: int, raw: bytes, names: dict[str, int], answers: AnswerFile
) -> dict[str, Any] | None:
    """The answer to a line; None where it has one."""
    name, asked = None, None
    try:
        name, asked = read_line(number, raw)
    except BadLine as error:
        problem = f"line {number} {error}"
    else:
        first = names.setdefault(name or "", number)
        problem = None if first == number else f"line {number} has the custom_id of line {first}"
    if number in answers.known:
        if answers.known[number] != name:
            message = f"line {number} is not the one that {answers.path} has an answer to; give another out"
            raise InputError("in", name, message)
        return None
    found = {"id": f"batch_req_{secrets.token_hex(12)}", "custom_id": name, "line": number}
    if problem is not None:
        return {**found, "response": None, "error": {"code": "invalid_line", "message": problem}}
    assert asked is not None
    status, body = await _response(service, asked)
    response = {"status_code": status, "request_id": secrets.token_hex(8), "body": body}
    return {**found, "response": response, "error": None}


async def _response(service: Service, asked: Line | ApiError) -> tuple[int, dict[str, Any]]:
    if isinstance(asked, ApiError):
        return asked.status, asked.body()
    for left in reversed(range(_TRIES)):
        try:
            answering = await service.begin(asked.body)
            await answering.collect()
        except Stopping:
            raise service.loop.error or Stopping() from None
        except Exception as error:
            if isinstance(error, Failed) and left:
                continue
            found = api_error(error)
            return found.status, found.body()
        writer = service.writer(asked.body)
        return 200, writer.whole(answering.choices, answering.usage()).model_dump(mode="json")
    raise AssertionError("unreachable")
