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
from partita.engine.memory import Asked
from partita.engine.requests import IDLE, arrays
from partita.engine.shapes import Decoding, Reading, StepShapes
from partita.engine.steps import Programs
from partita.program.sampling import Kind

_THREADS = 2
"""XLA compiles without Python's lock, on threads of its own too; tracing takes turns."""

Job = Callable[[], Any]


class Compiling:
    """Steps that are being compiled in the background."""

    def __init__(self, jobs: Iterable[Job]):
        self._threads = ThreadPoolExecutor(_THREADS, "compiling")
        self._jobs: list[Future[Any]] = [self._threads.submit(job) for job in jobs]

    def wait(self, quietly: bool = False) -> None:
        """Returns once all are compiled. Raises the first error, unless that is left to whoever runs the
        step."""
        errors = [job.exception() for job in self._jobs if not job.cancelled()]
        self._threads.shutdown()
        if not quietly:
            for error in filter(None, errors):
                raise error

    def give_up(self) -> None:
        """What has not begun is not compiled."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def jobs_of(programs: Programs, shapes: StepShapes, asked: Asked) -> list[Job]:
    """What these requests will run."""
    lengths = asked.lengths
    decoding, readings = shapes.choose(lengths, asked.ends, asked.samples)
    widths = [shapes.widths(reading, max(lengths[n] for n in reading.prompts)) for reading in readings]
    reads = {
        (reading.rows, width): _reading(programs, reading, width)
        for reading, steps in zip(readings, widths, strict=True)
        for width in steps
        if reading.room is not None or len(steps) == 1
    }
    first = readings[0]
    fills = bool(decoding.own) and len(readings) == 1 and asked.samples == len(lengths)
    fills = fills and first.rows == decoding.count
    return [
        *reads.values(),
        partial(_decode, programs, decoding),
        partial(_insert, programs, first, widths[0], decoding, fills),
        partial(_draw, programs, decoding, asked.kind),
    ]


def closed_jobs(programs: Programs, shapes: StepShapes) -> list[Job]:
    """What any mix of requests within the capacity will run, but for drafts."""
    (alone, one), (together, several) = shapes.closed()
    found = [_reading(programs, reading, width) for reading in {one, several} for width in reading.widths]
    for decoding in {alone, together}:
        found += [partial(_decode, programs, decoding), partial(_draw, programs, decoding)]
        found += [partial(_draw, programs, decoding, kind) for kind in decoding.own]
    moves = {(one, alone, True), (one, together, False), (several, together, False)}
    return [*found, *(partial(_insert, programs, read, (), into, fills) for read, into, fills in moves)]


def serving_jobs(programs: Programs, reading: Reading, into: Decoding) -> list[Job]:
    """What a server runs that reads prompts one after another, as `reading` says, into slots."""
    reads = [_reading(programs, reading, width) for width in reading.widths]
    moves = [partial(_insert, programs, reading, (), into, False)]
    return [*reads, partial(_decode, programs, into), *moves, partial(_draw, programs, into)]


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
        slots = programs.slots(into.layout, into.count, into.capacity)
        _compile(programs.insert(*target), slots, *given, _host(into.count), _host(into.count))


def _decode(programs: Programs, into: Decoding) -> None:
    cache = programs.slots(into.layout, into.count, into.capacity)
    whole = _whole(programs, (into.count,))
    with programs.drafts.timed("decode"):
        _compile(programs.decode(into.layout), programs.parameters(), cache, whole, whole)


def _draw(programs: Programs, into: Decoding, kind: Kind | None = None) -> None:
    """The draw of one kind, where it has a program of its own, or else of any."""
    settings = {name: _whole(programs, t.shape, t.dtype) for name, t in arrays([IDLE] * into.count).items()}
    given = programs.last_logits(into.layout, into.count), settings, _whole(programs, (into.count,))
    split, size = programs.named(programs.draws.history(into.layout)), (into.count, programs.padded["V"])
    counts = jax.ShapeDtypeStruct(size, np.int32, sharding=split)
    known = {"prompt": counts, "bias": jax.ShapeDtypeStruct(size, np.float32, sharding=split)}
    with programs.drafts.timed("draw"):
        if kind not in into.own:
            _compile(programs.draws.any(into.layout), *given, known, counts, _host())
        else:
            history = (known, counts) if kind == "full" else ({}, None)
            _compile(programs.draws.next(into.layout, kind), *given, *history)


def _host(*shape: int) -> jax.ShapeDtypeStruct:
    """Whole numbers that a call brings from the host."""
    return jax.ShapeDtypeStruct(shape, np.int32)


def _whole(programs: Programs, shape: tuple[int, ...], dtype: Any = np.int32) -> jax.ShapeDtypeStruct:
    """Numbers that every device has."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=programs.named(WHOLE))


def _compile(step: Any, *shapes: Any) -> None:
    step.lower(*shapes).compile()
