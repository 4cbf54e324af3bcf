"""Collective einsums run as loops (collective matmul), priced: what they send, and how much the dots hide.

Pope et al. 2022, section 3.5. A ring of K chips passes K - 1 shards on, one after the other, or both ways
round two in a step (of an even ring the last step brings half a shard from each side). The product is made in
K parts of d seconds; a step takes the longer of its bytes on their way and the parts that are multiplied
meanwhile, and what is left over is multiplied at the end (of a gather) or before (a scatter):

    one way     K - 1 times min(d, u) is hidden, u the seconds of a shard
    both ways   min(d, u), then min(2 d, u) for each further step, and min(2 d, u / 2) for a last half one

The start of each step's messages is never hidden. What software really hides is this times the profile's
looped_share: nothing where the chips are threads of one processor. Splitting a product moves more
activations: the sums of a gather are written and read once more for each part, the first operand of a scatter
is read for each.

The bound takes the permutations for the collective they stand for: overlap is no work, and what hiding it all
could reach is `Bound.overlapped_seconds`. Numbers and NumPy arrays alike."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from partita.cost.ledger import Ledger, Loop, Number, Sized
from partita.cost.links import Links
from partita.program.ops import Product
from partita.program.options import RunOptions, gather_step, name_of, scatter_step
from partita.sharding.reshard import ReshardStep


def messages(chips: Number, entries: Number, two_way: bool) -> Number:
    """Permutations of a ring of `chips`, each with a shard of `entries` along the dim it is cut by."""
    return chips - 1 + two_way * (chips % 2 == 0) * (entries > 1)


def steps(loop: Loop) -> Number:
    """Of the loop in which something is on its way; both ways at once are one step."""
    return loop.chips // 2 if loop.two_way else loop.chips - 1


def links_used(loop: Loop, links: Links, level: int, axes: str) -> Number:
    """Part of those links on a level along `axes` that a ring keeps busy.

    On a torus a ring over s physical axes goes along one of them at a time, one way round on one link of two.
    """
    if links.levels[level].kind != "torus":
        return 1
    return (1 if loop.two_way else 0.5) / links.starts(level, axes)


def hidden_seconds(loop: Loop, transfer_seconds: Number, dot_seconds: Number) -> Number:
    """Of the bytes' time that goes on behind the dots, at best, once."""
    shard, part = transfer_seconds / np.maximum(loop.chips - 1, 1), dot_seconds / loop.chips
    if not loop.two_way:
        return (loop.chips - 1) * np.minimum(part, shard)
    pairs, half = (loop.chips - 1) // 2, np.minimum(2 * part, shard) * (loop.chips % 2 == 0)
    found = np.minimum(part, 2 * shard) + (pairs - 1) * np.minimum(2 * part, 2 * shard) + half
    alone = np.minimum(part, shard) * (loop.chips > 1)  # two chips: half a shard each way is all there is
    return np.where(pairs > 0, found, alone)[()]


def moved_again(loop: Loop, operand_bytes: Number, out_bytes: Number) -> Number:
    """Bytes of activations that splitting a dot moves beside those of the whole one, in memory."""
    if loop.instead == "all-gather":
        return 2 * (loop.chips - 1) * out_bytes
    return (loop.chips - 1) * operand_bytes


class CollectiveMatmulCosts:
    """The operations that may loop."""

    run_options: RunOptions
    ledger: Ledger
    _scope: list[str]

    def project(
        self, y: Sized, gathered: str, products: Sequence[Product[Sized]]
    ) -> tuple[Sized, list[Sized]]:
        step = gather_step(y.sharding, gathered, [p.text for p in products])
        if step is None or not self._loops(step, "gather", products[0].scope):
            with self.scope("gather"):
                y = self.to(y, gathered)
            found = []
            for p in products:
                found.append(self._product(y, p, p.to))
                # attention first: hidden units of a parallel block wait for it as y, from which they come
                self._wait(p.scope, y if p.scope.startswith("ffn/") else found[-1])
            return y, found
        with self.scope("gather"):
            shard = self.to(y, str(step.before))
        y = replace(shard, sharding=step.after)
        found = [self._product(y, p) for p in products]
        operands = [(y, p.weight, out) for p, out in zip(products, found, strict=True)]
        with self.scope(products[0].scope):
            y = self._looped(shard, step, "gather", operands)
        for i, p in enumerate(products):
            with self.scope(p.scope):
                found[i] = self.to(found[i], p.to)
            self._wait(p.scope, found[i])
        return y, found

    def scattered(self, a: Sized, b: Sized, out: Sized, to: str) -> Sized:
        """The product of the einsum noted last, past the reduce-scatter on its way that is looped with it, if
        one is."""
        step = scatter_step(out.sharding, to)
        if step is None or not self._loops(step, "scatter"):
            return out
        return self._looped(out, step, "scatter", [(a, b, out)])

    def _way(self, kind: str, scope: str = "") -> str:
        return self.run_options.way(name_of([*self._scope, *([scope] if scope else [])]), kind)

    def _loops(self, step: ReshardStep, kind: str, scope: str = "") -> bool:
        """Whether it is on, and of any of the candidates a ring of more than one chip."""
        return self._way(kind, scope) != "none" and bool(np.any(self.shards(step.axes) > 1))

    def _product(self, y: Sized, p: Product[Sized], to: str | None = None) -> Sized:
        with self.scope(p.scope):
            return self.einsum(p.text, y, p.weight, to=to)

    def _looped(
        self, t: Sized, step: ReshardStep, kind: str, products: Sequence[tuple[Sized, Sized, Sized]]
    ) -> Sized:
        """t after the step that is looped with the products noted last: the operands and result of each.

        Each is made in parts: what is summed is written again for each, or an operand read for each, and a
        compiler may first cut the matrix.
        """
        two_way = self._way(kind) == "two-way"
        loop = Loop(f"{name_of(self._scope)}/{kind}", step.kind, two_way, self.shards(step.axes), ())
        dots = self.ledger.entries[-len(products) :]
        for i, (a, b, out) in enumerate(products):
            again = moved_again(loop, self.bytes(a), self.bytes(out))
            dots[i] = replace(dots[i], moved_bytes=dots[i].moved_bytes + again)
            self._hold(a, out, out, besides=self.bytes(b))
        self.ledger.entries[-len(products) :] = dots
        return self._step(t, step, replace(loop, dots=tuple(dots)))

    def permutations(self, t: Sized, step: ReshardStep, loop: Loop) -> Mapping[str, Any]:
        """What differs in the ledger from the collective that they stand for."""
        shard = step.before if step.kind == "all-gather" else step.after  # its dim as it travels
        entries = t.sizes[step.dim] // self.shards(shard[step.dim])
        return {"messages": messages(loop.chips, entries, loop.two_way), "loop": loop}

    # -- what all operations share ------------------------------------------------------------------------

    @abstractmethod
    def scope(self, name: str) -> AbstractContextManager[object]: ...

    @abstractmethod
    def to(self, t: Sized, sharding: str) -> Sized: ...

    @abstractmethod
    def einsum(self, text: str, a: Sized, b: Sized, *, to: str | None = None) -> Sized: ...

    @abstractmethod
    def shards(self, axes: str) -> Number: ...

    @abstractmethod
    def bytes(self, t: Sized) -> Number: ...

    @abstractmethod
    def _hold(self, *tensors: Sized, besides: Number = 0) -> None: ...

    @abstractmethod
    def _wait(self, name: str, t: Sized) -> None: ...

    @abstractmethod
    def _step(self, t: Sized, step: ReshardStep, loop: Loop | None = None) -> Sized: ...
