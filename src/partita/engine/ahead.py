"""Compiling steps before there is anything to run them on: while weights are read, or before a server starts.

A step is traced and compiled for the shapes that it will be called with; the call then finds it. Knows no
weights and no requests, only sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np

from partita.engine.cache import WHOLE
from partita.engine.requests import IDLE, arrays
from partita.engine.shapes import Decoding, Reading, StepShapes
from partita.engine.steps import Programs

_THREADS = 2
"""XLA compiles without Python's lock, on threads of its own too; tracing takes turns."""

Job = Callable[[], Any]


class Compiling:
    """Steps that are being compiled in the background. Errors are left to whoever runs the step."""

    def __init__(self, jobs: Iterable[Job]):
        self._threads = ThreadPoolExecutor(_THREADS, "compiling")
        self._jobs: list[Future[Any]] = [self._threads.submit(job) for job in jobs]

    def wait(self) -> None:
        """Returns once all are compiled."""
        for job in self._jobs:
            job.exception()
        self._threads.shutdown()

    def give_up(self) -> None:
        """What has not begun is not compiled."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def jobs_of(programs: Programs, shapes: StepShapes, lengths: Sequence[int], ends: Sequence[int]) -> list[Job]:
    """What requests of so many tokens, and of so many with their output, one sample each, will run."""
    decoding, readings = shapes.choose(lengths, ends, len(lengths))
    widths = [shapes.widths(reading, max(lengths[n] for n in reading.prompts)) for reading in readings]
    reads = {
        (reading.rows, width): _reading(programs, reading, width)
        for reading, steps in zip(readings, widths, strict=True)
        for width in steps
        if reading.room is not None or len(steps) == 1
    }
    first = readings[0]
    fills = len(readings) == 1 and first.rows == decoding.count
    return [
        *reads.values(),
        partial(_decode, programs, decoding),
        partial(_insert, programs, first, widths[0], decoding, fills),
        partial(_draw, programs, decoding),
    ]


def closed_jobs(programs: Programs, shapes: StepShapes) -> list[Job]:
    """What any mix of requests within the capacity will run."""
    (alone, one), (together, several) = shapes.closed()
    found = [_reading(programs, reading, width) for reading in {one, several} for width in reading.widths]
    for decoding in {alone, together}:
        found += [partial(_decode, programs, decoding), partial(_draw, programs, decoding)]
    moves = {
        (one, alone, True),
        (one, together, False),
        (several, together, True),
        (several, together, False),
    }
    return [*found, *(partial(_insert, programs, read, (), into, fills) for read, into, fills in moves)]


def _reading(programs: Programs, reading: Reading, width: int) -> Job:
    tokens, lengths = _host(reading.rows, width), _host(reading.rows)
    if reading.room is None:
        return lambda: _compile(programs.prefill(reading.layout), programs.parameters(), tokens, lengths)
    cache, logits = _held(programs, reading, (width,))
    ends = jax.ShapeDtypeStruct((), np.bool_)
    return lambda: _compile(
        programs.read(reading.layout), programs.parameters(), cache, logits, tokens, *[lengths] * 3, ends
    )


def _held(programs: Programs, reading: Reading, widths: Sequence[int]) -> tuple[Any, Any]:
    """What prompts that have been read leave: a cache and logits."""
    room, widest = reading.room, max(reading.widths)
    if room is None:  # read in one step without a cache: what a step leaves
        room, widest = max(widths), 1
    cache = programs.cache(reading.layout, reading.rows, room, widest)
    return cache, programs.last_logits(reading.layout, reading.rows)


def _insert(programs: Programs, reading: Reading, widths: Sequence[int], into: Decoding, fills: bool) -> None:
    cache, logits = _held(programs, reading, widths)
    target = reading.layout, into.layout, into.capacity
    given = cache, _host(reading.rows), logits, _host(into.count)
    if fills:
        _compile(programs.fill(*target), *given)
    else:
        slots = programs.cache(into.layout, into.count, into.capacity)
        _compile(programs.insert(*target), slots, *given, _host(into.count), _host(into.count))


def _decode(programs: Programs, into: Decoding) -> None:
    cache = programs.cache(into.layout, into.count, into.capacity)
    whole = _whole(programs, (into.count,))
    _compile(programs.decode(into.layout), programs.parameters(), cache, whole, whole)


def _draw(programs: Programs, into: Decoding) -> None:
    settings = {name: _whole(programs, t.shape, t.dtype) for name, t in arrays([IDLE] * into.count).items()}
    split, size = programs.named(programs.draws.history(into.layout)), (into.count, programs.padded["V"])
    counts = jax.ShapeDtypeStruct(size, np.int32, sharding=split)
    known = {"prompt": counts, "bias": jax.ShapeDtypeStruct(size, np.float32, sharding=split)}
    logits, whole = programs.last_logits(into.layout, into.count), _whole(programs, (into.count,))
    asked = jax.ShapeDtypeStruct((into.count,), np.bool_)
    _compile(programs.draws.any(into.layout), logits, settings, whole, known, counts, _host(), asked, whole)


def _host(*shape: int) -> jax.ShapeDtypeStruct:
    """Whole numbers that a call brings from the host."""
    return jax.ShapeDtypeStruct(shape, np.int32)


def _whole(programs: Programs, shape: tuple[int, ...], dtype: Any = np.int32) -> jax.ShapeDtypeStruct:
    """Numbers that every device has."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=programs.named(WHOLE))


def _compile(step: Any, *shapes: Any) -> None:
    step.lower(*shapes).compile()
