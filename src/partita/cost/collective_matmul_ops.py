"""Einsums of the program looped with the collectives next to them, noted where its switches say so.

A part of `CostOps`, and the counterpart of the engine's. Knows nothing about time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from partita.cost import collective_matmul
from partita.cost.ledger import Ledger, Loop, Number
from partita.cost.sized import Sized
from partita.program.ops import Product
from partita.program.options import RunOptions, gather_step, name_of, scatter_step
from partita.sharding.reshard import Step


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

    def _loops(self, step: Step, kind: str, scope: str = "") -> bool:
        """Whether it is on, and of any of the candidates a ring of more than one chip."""
        return self._way(kind, scope) != "none" and bool(np.any(self.shards(step.axes) > 1))

    def _product(self, y: Sized, p: Product[Sized], to: str | None = None) -> Sized:
        with self.scope(p.scope):
            return self.einsum(p.text, y, p.weight, to=to)

    def _looped(
        self, t: Sized, step: Step, kind: str, products: Sequence[tuple[Sized, Sized, Sized]]
    ) -> Sized:
        """t after the step that is looped with the products noted last: the operands and result of each.

        Each is made in parts: what is summed is written again for each, or an operand read for each, and a
        compiler may first cut the matrix.
        """
        two_way = self._way(kind) == "two-way"
        loop = Loop(f"{name_of(self._scope)}/{kind}", step.kind, two_way, self.shards(step.axes), ())
        dots = self.ledger.entries[-len(products) :]
        for i, (a, b, out) in enumerate(products):
            again = collective_matmul.moved_again(loop, self.bytes(a), self.bytes(out))
            dots[i] = replace(dots[i], moved_bytes=dots[i].moved_bytes + again)
            self._hold(a, out, out, besides=self.bytes(b))
        self.ledger.entries[-len(products) :] = dots
        return self._step(t, step, replace(loop, dots=tuple(dots)))

    def permutations(self, t: Sized, step: Step, loop: Loop) -> Mapping[str, Any]:
        """What differs in the ledger from the collective that they stand for."""
        shard = step.before if step.kind == "all-gather" else step.after  # its dim as it travels
        entries = t.sizes[step.dim] // self.shards(shard[step.dim])
        return {"messages": collective_matmul.messages(loop.chips, entries, loop.two_way), "loop": loop}

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
    def _step(self, t: Sized, step: Step, loop: Loop | None = None) -> Sized: ...
