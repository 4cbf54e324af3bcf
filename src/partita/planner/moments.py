"""What a chip of a server holds at every moment, by part: the account that plans and the engine are held to.

A server has a fixed number of slots. Prompts are read together, as many as the prefill batch, into slots that
are free for them; the sequences of all other slots are alive meanwhile. So there are three moments:

    reading   weights + live caches + activations of a prefill step
    moving    weights + live caches + what is moved at once from prefill's layout to decode's
    decoding  weights + caches of all slots + activations of a decode step

Live caches are those of all slots, or, where that is more, those of a prefill batch in prefill's layout and
of the other slots. Where fewer prompts are read, spread over the chips, they are between the two. A prompt
that is read in chunks is alive in the decode steps between them too. Numbers are exact ints, or NumPy float
arrays of many candidates.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from partita.cost.number import Number, larger, smaller

Moment = Literal["reading", "moving", "decoding"]


class Live(NamedTuple):
    """Bytes on one chip."""

    weights: Number
    kv: Number
    activations: Number
    runtime: Number = 0

    @property
    def total(self) -> Number:
        return self.weights + self.kv + self.activations + self.runtime


class Caches(NamedTuple):
    """Bytes of the caches on one chip."""

    slots: Number
    """Those of all slots, in decode's layout."""
    beside: Number
    """Those of the slots that are alive while prompts are read."""
    prompts: Number
    """Those of the prompts that are read, in prefill's layout."""
    chunked: bool | np.ndarray = False
    """Whether decode steps come between the chunks of prompts."""
    copied: bool = False
    """Whether slots come to be when prompts are moved to them, so that both are held at once."""

    @property
    def live(self) -> Number:
        """While prompts are read."""
        return larger(self.slots, self.beside + self.prompts)


class Steps(NamedTuple):
    """Bytes that are held on one chip beside weights and caches."""

    reading: Number
    moving: Number
    decoding: Number


def caches_beside(slots: Number, sequences: Number, alive: Number) -> Number:
    """The part of the slots' caches that a chip holds while so many sequences of all chips are `alive`, at
    most: slots may come free on other chips first. `sequences`: of all slots, those that a chip has a part
    of."""
    kept = smaller(sequences, alive)
    if isinstance(slots, int) and isinstance(sequences, int) and isinstance(kept, int):
        return slots * kept // sequences
    return slots * (kept / sequences)


def account(weights: Number, caches: Caches, steps: Steps, runtime: Number = 0) -> dict[Moment, Live]:
    """What one chip holds at each moment."""
    read = moved = caches.live
    if caches.copied:
        read, moved = caches.beside + caches.prompts, caches.slots + caches.prompts
    decoded = caches.slots
    if isinstance(caches.chunked, np.ndarray):
        decoded = np.where(caches.chunked, caches.live, caches.slots)
    elif caches.chunked:
        decoded = caches.live
    return {
        "reading": Live(weights, read, steps.reading, runtime),
        "moving": Live(weights, moved, steps.moving, runtime),
        "decoding": Live(weights, decoded, steps.decoding, runtime),
    }
