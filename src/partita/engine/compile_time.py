"""Seconds that compiling takes, as JAX reports them; of a program from its cache, those that it once took.

How long a call took says less: its first run may have waited for much else, and a program that was read from
the cache says nothing of one that is not there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import jax

_EVENTS = ("/jax/core/compile/backend_compile_duration", "/jax/compilation_cache/compile_time_saved_sec")
"""Compiling or reading a program, and what reading it saved."""


@dataclass
class Compiled:
    """What a thread compiled in a while."""

    seconds: float = 0.0


_while = threading.local()


@contextmanager
def compiling() -> Iterator[Compiled]:
    """Counts what this thread compiles; not to be nested."""
    _while.found = found = Compiled()
    try:
        yield found
    finally:
        _while.found = None


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    found = getattr(_while, "found", None)
    if found is not None and event in _EVENTS:
        found.seconds += duration_secs


jax.monitoring.register_event_duration_secs_listener(_listen)
