"""Reads a trace: a CSV file with one request a line.

    prompt,output,prefix,weight
    2048,64,0,1
    1984,64,1920,2.5

The first line names the columns, in any order: `prompt` and `output` in tokens are needed; `prefix`, the
cached tokens at the start of the prompt, is 0 without a column; `weight`, how often the request comes, is 1.
A column `arrival` says when each request came: seconds from any moment on, or dates and times as ISO 8601 has
them. Only who asks for arrivals looks at it. Blank lines are skipped.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partita.errors import InputError
from partita.specs.traffic import RANGES, WEIGHTS, Traffic, positive, whole
from partita.specs.wording import did_you_mean

NEEDED = ("prompt", "output")
KNOWN = (*NEEDED, "prefix", "weight", "arrival")
MOST_BYTES = 64 * 2**20


def read_trace(path: str | os.PathLike[str], field: str = "trace") -> Traffic:
    """The requests of a CSV file in the form above.

    Raises InputError on `field` with the path; the message names the line (the first is 1), the column and
    what it holds.
    """
    return _read(path, field, arrivals=False)[0]


def read_arrivals(
    path: str | os.PathLike[str], field: str = "trace"
) -> tuple[Traffic, NDArray[np.float64] | None]:
    """The same, and the seconds at which each request came, float64 [n]; None without that column."""
    return _read(path, field, arrivals=True)


def _read(
    path: str | os.PathLike[str], field: str, arrivals: bool
) -> tuple[Traffic, NDArray[np.float64] | None]:
    path = os.fspath(path)
    text = _text(path, field)
    try:
        rows = _rows(text)
        return _traffic(*rows), _arrivals(*rows) if arrivals else None
    except ValueError as error:
        raise InputError(field, path, str(error)) from None


def _arrivals(rows: list[list[str]], lines: list[int]) -> NDArray[np.float64] | None:
    """Seconds of the column, if there is one. Raises ValueError with the line."""
    names = [name.strip().lower() for name in rows[0]]
    if "arrival" not in names:
        return None
    texts, accepted = (
        [row[names.index("arrival")] for row in rows[1:]],
        "must be seconds, or an ISO date and time",
    )
    return np.array(_numbers("arrival", texts, lines[1:], _moment, accepted), np.float64)


def _moment(text: str) -> float | None:
    """Seconds, or the seconds of a date and time since 1970, in UTC where it names no zone."""
    try:
        found = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        found = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return found if abs(found) < 1e12 else None


def _text(path: str, field: str) -> str:
    try:
        with Path(os.path.expanduser(path)).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(field, path, f"cannot be read: {reason}; {_form()}") from None
    if len(data) > MOST_BYTES:
        raise InputError(field, path, f"is larger than {MOST_BYTES // 2**20} MiB; give a sample of it")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(field, path, f"line {line} is not text in UTF-8; {_form()}") from None


def _rows(text: str) -> tuple[list[list[str]], list[int]]:
    """The rows that are not blank, and the line on which each ends. Raises ValueError with the line."""
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    rows, lines = [], []
    try:
        for row in reader:
            if row and (len(row) > 1 or row[0].strip()):
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num} is not CSV: {error}; {_form()}") from None
    if not rows:
        raise ValueError(f"is empty; {_form()}")
    return rows, lines


def _traffic(rows: list[list[str]], lines: list[int]) -> Traffic:
    """The requests of these rows. Raises ValueError with the line."""
    names = [name.strip().lower() for name in rows[0]]
    _check_header(names, lines[0])
    if len(rows) == 1:
        raise ValueError(f"line {lines[0]} is a header and no request follows; {_form()}")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(names):
            raise ValueError(f"line {line} has {len(row)} fields and the header has {len(names)}")
    columns = dict(zip(names, zip(*rows[1:], strict=True), strict=True))
    lines = lines[1:]
    found = {}
    for name in ("prompt", "output", "prefix"):
        if name in columns:
            least, most = RANGES[name]
            accepted = f"must be a whole number of tokens from {least} to {most:,}"
            read = _reader(least, most)
            found[name] = np.array(_numbers(name, columns[name], lines, read, accepted), np.int64)
    if "weight" in columns:
        found["weight"] = np.array(_numbers("weight", columns["weight"], lines, positive, WEIGHTS))
    if "prefix" in found and (wrong := found["prefix"] >= found["prompt"]).any():
        first = int(np.argmax(wrong))
        prompt, prefix = found["prompt"][first], found["prefix"][first]
        raise ValueError(f"line {lines[first]}, prefix: {prefix}: must be less than the prompt, {prompt}")
    return Traffic(**found)


def _check_header(names: Sequence[str], line: int) -> None:
    for position, name in enumerate(names):
        if name not in KNOWN:
            hint = did_you_mean(name, KNOWN)
            raise ValueError(f"line {line}: {name[:40]!r} is no known column; {hint}{_form()}")
        if name in names[:position]:
            raise ValueError(f"line {line}: the column {name} is named twice")
    for name in NEEDED:
        if name not in names:
            raise ValueError(f"line {line}: there is no column {name}; {_form()}")


def _numbers(
    name: str, texts: Sequence[str], lines: list[int], read: Callable[[str], float | None], accepted: str
) -> list[float]:
    values = []
    for text, line in zip(texts, lines, strict=True):
        value = read(text.strip())
        if value is None:
            raise ValueError(f"line {line}, {name}: {text.strip()[:40]!r} {accepted}")
        values.append(value)
    return values


def _reader(least: int, most: int) -> Callable[[str], int | None]:
    return lambda text: whole(text, least, most)


def _form() -> str:
    return "accepted is a CSV file whose first line is prompt,output and optionally prefix, weight, arrival"
