"""What a chip holds beside what is stored while an operation runs: its operands, what it gives, what waits.

A part of `CostOps`. An operation needs its operands and its result at once; of shards that travel in blocks
(`Backend.in_blocks`), what is gathered, scattered or traded along an inner dim is there twice. What the
projections of a layer gave waits until the part of the program that they are named after is left; the
residual waits all the time, and is added by `step.py`. Weights and caches as stored are counted there too.
Knows nothing about time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from partita.cost.ledger import Ledger, Number, Sized
from partita.program.options import RunOptions
from partita.sharding.interleave import INTERLEAVED
from partita.sharding.reshard import ReshardStep
from partita.specs.formats import BYTES

STORED = ("weight", "cache", "read")
"""Kinds of tensors that are held anyway."""


class LiveMemory:
    """The most bytes held at once, in the ledger."""

    ledger: Ledger
    run_options: RunOptions
    _waiting: dict[str, Number]
    _all_waiting: Number = 0

    def _hold(self, *tensors: Sized, besides: Number = 0) -> None:
        """These at once, beside what waits."""
        held = besides + self._all_waiting + sum(self._held(t) for t in tensors)
        most = self.ledger.held_bytes
        whole = isinstance(held, int) and isinstance(most, int)
        self.ledger.held_bytes = max(held, most) if whole else np.maximum(held, most)

    def _held(self, t: Sized) -> Number:
        """Bytes of a tensor beside what is stored."""
        if t.kind in STORED:
            return 0
        return self.bytes(t) * t.moved if t.kind == "gathered" else self.bytes(t)

    def _wait(self, name: str, t: Sized) -> None:
        """t is held from here on, until the scope that its name begins with is left."""
        self._waiting[name] = self._waiting.get(name, 0) + self._held(t)
        self._all_waiting = sum(self._waiting.values())

    def _leave(self, scope: str) -> None:
        done = [name for name in self._waiting if name.startswith(f"{scope}/")]
        for name in done:
            del self._waiting[name]
        if done:
            self._all_waiting = sum(self._waiting.values())

    def _hold_step(self, t: Sized, step: ReshardStep, before: Sized, moves: Number) -> None:
        """A collective takes `before` to t; axes of one chip move nothing."""
        if t.kind in STORED:
            return
        arrived = self._share(t.sizes, t.sharding.dims, t.sharding.axes, BYTES[t.format])
        given: Number = 0
        if before.kind not in STORED:  # along axes of one chip a gathered weight is still as stored
            given = self.bytes(before) * ((before.moved > 0) * 1 if before.kind == "gathered" else 1)
        held = arrived + given
        for dim, size in ((step.loses, arrived), (step.gains, given)):
            if dim and self._twice(step, dim):
                held = np.maximum(held, 2 * size) if isinstance(held, np.ndarray) else max(held, 2 * size)
        self._hold(besides=held * moves)

    def _copies(self, before: Sized, step: ReshardStep, moves: Number) -> Number:
        """How often a gathered weight is held until it has been multiplied with: XLA may well keep the blocks
        that it came in while the product has begun."""
        copies = moves * (2 if step.loses and self._twice(step, step.loses) else 1)
        arrays = isinstance(copies, np.ndarray) or isinstance(before.moved, np.ndarray)
        return np.maximum(before.moved, copies) if arrays else max(before.moved, copies)

    def _twice(self, step: ReshardStep, dim: str) -> bool:
        """Whether shards of a dim have to be put in place: it is dealt out, or they are blocks and others are
        in front of it."""
        return dim == INTERLEAVED or (self.run_options.backend.in_blocks and step.before.dims.index(dim) > 0)

    def _hold_waves(self, x: Sized, own_base: bool) -> None:
        """x [B L ... D] and what it is turned into; from here on a sine and a cosine of each two of its last
        dim, which all layers of one base share. Axes of one chip split nothing: then they are those of whole
        L, that keys have anyway."""
        self._hold(x)
        axes = x.sharding["L"]
        name = f"waves of {'local' if own_base else 'other'} layers, L over {axes or 'nothing'}"
        groups = (x.sharding["B"], axes)
        waves = self._share(x.sizes, f"BL{x.sharding.dims[-1]}", groups, BYTES["f32"])
        self._waiting[name] = waves * (self.shards(axes) > 1) if axes else waves
        self._all_waiting = sum(self._waiting.values())

    def _mask(self, scores: Sized) -> Number:
        """Bytes of which places the queries of scores [B K L G S] see."""
        return self._share(scores.sizes, "BLS", [scores.sharding[dim] for dim in "BLS"])

    @abstractmethod
    def shards(self, axes: str) -> Number: ...

    @abstractmethod
    def bytes(self, t: Sized) -> Number: ...

    @abstractmethod
    def _share(
        self, sizes: Mapping[str, Number], dims: str, groups: Iterable[str], times: Any = 1
    ) -> Number: ...
