"""A loop over the tiny model, and requests that are put to it and waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.engine.asking import engine

from partita.engine.engine import Engine, EngineOptions
from partita.engine.shapes import Capacity
from partita.engine.stopping import Piece
from partita.server.generation import Generation
from partita.server.loop import EngineLoop, Limits
from partita.server.service import Service
from partita.specs.sampling import Sampling

SLOTS, CONTEXT = 4, 64


def small_engine(**options: Any) -> Engine:
    return engine(options=EngineOptions(capacity=Capacity(SLOTS, CONTEXT), draft="off", **options))


def started(runs: Engine, limits: Limits | None = None) -> EngineLoop:
    """A loop that is ready."""
    loop = EngineLoop(runs, limits or Limits())
    loop.start()
    assert loop.ready.wait(300)
    return loop


@contextmanager
def served(limits: Limits | None = None) -> Iterator[Service]:
    """The tiny model as a service while it lasts."""
    loop = started(small_engine(), limits)
    yield Service(loop, "tiny")
    loop.stop()
    assert loop.join(60)


class Asked:
    """A request that was put to a loop: the pieces of its samples, or the error that it ended by."""

    def __init__(self, loop: EngineLoop, ids: Sequence[int], sampling: Sampling, **more: Any):
        self.loop, self.pieces, self.error = loop, [[] for _ in range(sampling.n)], None
        self._open, self._over = sampling.n, threading.Event()
        self.began = threading.Event()
        self.generation: Generation = loop.submit(
            ids, sampling, partial(loop.engine.ending, ids, sampling), self._tell, **more
        )

    def _tell(self, sample: int, piece: Piece | Exception) -> None:
        self.began.set()
        if isinstance(piece, Exception):
            self.error = piece
            self._over.set()
            return
        self.pieces[sample].append(piece)
        self._open -= piece.finish is not None
        if not self._open:
            self._over.set()

    def wait(self) -> list[tuple[str, list[int], str | None]]:
        """Text, tokens and end of each sample."""
        assert self._over.wait(120)
        if self.error is not None:
            raise self.error
        return [
            (
                "".join(piece.text for piece in pieces),
                [piece.token for piece in pieces if piece.token is not None],
                pieces[-1].finish,
            )
            for pieces in self.pieces
        ]


def alone(runs: Engine, ids: Sequence[int], sampling: Sampling) -> list[tuple[str, list[int], str]]:
    """What the engine writes where nobody else is served."""
    return [(each.text, each.tokens, each.finish) for each in runs.complete([ids], sampling)[0]]


def quiet(loop: EngineLoop) -> None:
    """Waits until the loop has nothing to do; then nothing is in use."""
    for _ in range(2000):
        if not loop.running and not loop.waiting:
            break
        threading.Event().wait(0.005)
    assert loop.waiting == 0
    assert loop.scheduler.memory.used_slots == 0
    assert loop.slots.samples == [None] * loop.capacity.slots
    assert loop.scheduler.cached == 0
