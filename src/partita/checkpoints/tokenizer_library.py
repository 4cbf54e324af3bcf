"""Calls of the `tokenizers` library that end in an answer or in one line, whatever the tokenizer.

The library is in Rust. Where it meets what its authors did not expect it panics: a BaseException that is no
Exception, and a stack trace on standard error. A pattern that goes back and forth without end stops it that
way too, after a second for each place of the text it is tried at.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from tokenizers import Tokenizer as Backend

from partita.errors import InputError, one_line

T = TypeVar("T")

_MOST_SECONDS = 4.0
"""How long a text may take to split where the tokenizer's patterns are not among the known ones."""
_PANIC = b"\nthread '"


class Failure(Exception):
    """What the library failed at, in one line."""


def attempt(run: Callable[[], T]) -> T:
    """What `run` gives. Raises Failure where the library fails or panics."""
    try:
        return run()
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise Failure(one_line(error)[:200]) from None


def attempt_quietly(run: Callable[[], T]) -> T:
    """The same, without the stack trace that the library writes to standard error when it panics."""
    with _without_traces():
        return attempt(run)


def attempt_in_time(run: Callable[[], T]) -> T:
    """The same; Failure too where it takes seconds. The library then goes on in a thread that nothing waits
    for, as nothing can stop it."""
    found: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append(attempt(run))
        except BaseException as error:
            failed.append(error)

    with _without_traces():
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(_MOST_SECONDS)
    if failed:
        raise failed[0]
    if not found:
        raise Failure(f"takes longer than {_MOST_SECONDS:g} seconds")
    return found[0]


_REDIRECTED = threading.Lock()
"""Standard error is the whole process's: two that redirected it at once would restore each other's file."""


@contextmanager
def _without_traces() -> Iterator[None]:
    """Holds back what is written to standard error, and leaves out of it what the library says of a panic."""
    with _REDIRECTED:
        yield from _redirected()


def _redirected() -> Iterator[None]:
    try:
        sys.stderr.flush()
        kept = os.dup(2)
    except (OSError, ValueError, AttributeError):  # there is no standard error
        yield
        return
    with tempfile.TemporaryFile() as held:
        try:
            os.dup2(held.fileno(), 2)
            yield
        finally:
            with suppress(OSError, ValueError):
                sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            told = (b"\n" + held.read()).split(_PANIC)[0][1:]
            with suppress(OSError):
                os.write(2, told)


def decode(backend: Backend, ids: Sequence[int]) -> str:
    """The text of ids, special tokens too. Raises InputError (field "token") where the decoder fails."""
    try:
        return attempt(lambda: backend.decode(ids, skip_special_tokens=False))
    except Failure as failure:
        raise InputError("token", repr(list(ids[-4:])), f"cannot be decoded: {failure}") from None
