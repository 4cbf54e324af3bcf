"""What a chip holds beside what is stored while an operation runs: its operands, what it gives, what waits.

An operation needs its operands and its result at once; of shards that travel in blocks (`Backend.in_blocks`),
what is gathered, scattered or traded along an inner dim is there twice. What the projections of a layer gave
waits until the part of the program that they are named after is left. `step.py` adds the residual, which is
held all through a step, and the weights and caches as stored.
"""

from __future__ import annotations

from partita.cost.ledger import Ledger, Sized
from partita.cost.local_sizes import LocalSizes
from partita.cost.number import Number, larger
from partita.program.options import Backend
from partita.sharding.interleave import INTERLEAVED
from partita.sharding.reshard import ReshardStep
from partita.specs.formats import BYTES

STORED = ("weight", "cache", "read")
"""Kinds of tensors that are held anyway."""


class LiveMemory:
    """Keeps what waits, and notes in a ledger the most bytes that are held at once."""

    def __init__(self, local: LocalSizes, ledger: Ledger, backend: Backend):
        self._local, self._ledger, self._backend = local, ledger, backend
        self._waiting: dict[str, Number] = {}
        self._all_waiting: Number = 0

    def hold(self, *tensors: Sized, besides: Number = 0) -> None:
        """These are held at once, beside what waits."""
        held = besides + self._all_waiting + sum(self._held(t) for t in tensors)
        self._ledger.held_bytes = larger(held, self._ledger.held_bytes)

    def _held(self, t: Sized) -> Number:
        """Bytes of a tensor beside what is stored."""
        if t.kind in STORED:
            return 0
        return self._local.bytes(t) * t.moved if t.kind == "gathered" else self._local.bytes(t)

    def wait(self, name: str, t: Sized) -> None:
        """t is held from here on, until the scope that its name begins with is left."""
        self._waiting[name] = self._waiting.get(name, 0) + self._held(t)
        self._all_waiting = sum(self._waiting.values())

    def leave(self, scope: str) -> None:
        """What waited for the end of this scope is no longer held."""
        done = [name for name in self._waiting if name.startswith(f"{scope}/")]
        for name in done:
            del self._waiting[name]
        if done:
            self._all_waiting = sum(self._waiting.values())

    def hold_step(self, t: Sized, step: ReshardStep, before: Sized, moves: Number) -> None:
        """A collective takes `before` to t; axes of one chip move nothing."""
        if t.kind in STORED:
            return
        arrived = self._local.share(t.sizes, t.sharding.dims, t.sharding.axes, BYTES[t.format])
        given: Number = 0
        if before.kind not in STORED:  # along axes of one chip a gathered weight is still as stored
            given = self._local.bytes(before) * ((before.moved > 0) * 1 if before.kind == "gathered" else 1)
        held = arrived + given
        for dim, size in ((step.loses, arrived), (step.gains, given)):
            if dim and self._twice(step, dim):
                held = larger(held, 2 * size)
        self.hold(besides=held * moves)

    def copies(self, before: Sized, step: ReshardStep, moves: Number) -> Number:
        """How often a gathered weight is held until it has been multiplied with: XLA may well keep the blocks
        that it came in while the product has begun."""
        copies = moves * (2 if step.loses and self._twice(step, step.loses) else 1)
        return larger(before.moved, copies)

    def _twice(self, step: ReshardStep, dim: str) -> bool:
        """Whether shards of a dim have to be put in place: its places are interleaved over chips, or the
        shards are blocks and other dims are in front of it."""
        return dim == INTERLEAVED or (self._backend.in_blocks and step.before.dims.index(dim) > 0)

    def hold_waves(self, x: Sized, own_base: bool) -> None:
        """Holds x [B L ... D] and what it is turned into, and from here on a sine and a cosine for every two
        numbers of its last dim, which all layers of one base share. Axes of one chip split nothing: then they
        are the waves of whole L, which keys have anyway."""
        self.hold(x)
        axes = x.sharding["L"]
        name = f"waves of {'local' if own_base else 'other'} layers, L over {axes or 'nothing'}"
        groups = (x.sharding["B"], axes)
        waves = self._local.share(x.sizes, f"BL{x.sharding.dims[-1]}", groups, BYTES["f32"])
        self._waiting[name] = waves * (self._local.shards(axes) > 1) if axes else waves
        self._all_waiting = sum(self._waiting.values())

    def mask(self, scores: Sized) -> Number:
        """Bytes of the mask that says which places the queries of scores [B K L G S] see."""
        return self._local.share(scores.sizes, "BLS", [scores.sharding[dim] for dim in "BLS"])
