"""Which collectives take a tensor from one sharding to another.

`reshard` is structural (it sees names, never sizes) and deterministic, so every interpreter of the program
derives the same steps. The cheap order: slices first, reduce-scatter before all-reduce, all-to-all before
all-gather. A collective adds or removes only the innermost axes of a dim; where the order is in the way, a
collective-permute of the (by then small) shard mends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from partita.sharding.spec import Sharding

Kind = Literal["slice", "reduce-scatter", "all-reduce", "all-to-all", "all-gather", "collective-permute"]


@dataclass(frozen=True)
class ReshardStep:
    """One collective (or local slice) over `axes`.

    `dim` is the dim that is sliced, scattered into, gathered or reordered; for an all-to-all `dim` loses
    the axes and `to` gains them. A collective-permute takes `dim` from the order `axes` to `order`.
    """

    kind: Kind
    axes: str
    before: Sharding
    after: Sharding
    dim: str = ""
    to: str = ""
    order: str = ""

    @property
    def gains(self) -> str:
        """The dim that is split over more axes afterwards, if any."""
        return self.to or (self.dim if self.kind in ("slice", "reduce-scatter") else "")

    @property
    def loses(self) -> str:
        """The dim that is split over fewer axes afterwards, if any."""
        return self.dim if self.kind in ("all-to-all", "all-gather") else ""

    def reorders(self, sizes: Mapping[str, Any]) -> Any:
        """1 where this permutation moves anything, that is swaps two axes of more than one chip, else 0.

        `sizes` maps axes to ints or NumPy arrays; arrays give an array.
        """
        moves = 0
        for i, first in enumerate(self.axes):
            for second in self.axes[i + 1 :]:
                if self.order.index(first) > self.order.index(second):
                    moves = moves | ((sizes[first] > 1) & (sizes[second] > 1))
        return moves * 1


@lru_cache(maxsize=65536)
def reshard(source: Sharding, target: Sharding) -> tuple[ReshardStep, ...]:
    """Steps from `source` to `target`, which has the same dims and no partial sum that `source` lacks.

    Raises ValueError where the dims differ or `target` has a partial sum that `source` lacks.
    """
    if source.dims != target.dims:
        raise ValueError(f"cannot reshard {source} to {target}: other dims")
    if not set(target.partial) <= set(source.partial):
        raise ValueError(f"cannot reshard {source} to {target}: it would create a partial sum")
    return _Route(source, target).steps()


class _Route:
    """The walk from one sharding to another, a step at a time."""

    def __init__(self, source: Sharding, target: Sharding):
        self.now, self.target = source, target
        self.found: list[ReshardStep] = []
        self.goal = {axis: dim for dim in target.dims for axis in target[dim]}
        self.home = {axis: dim for dim in source.dims for axis in source[dim]}

    def steps(self) -> tuple[ReshardStep, ...]:
        self._slices()
        self._reduce_scatters()
        self._all_reduce()
        self._all_to_alls()
        self._all_gathers()
        for dim in self.now.dims:
            self._arrange(dim, self.target[dim])
        return tuple(self.found)

    def _take(self, kind: Kind, axes: str, after: Sharding, **where: str) -> None:
        self.found.append(ReshardStep(kind, axes, self.now, after, **where))
        self.now = after

    def _grow(self, dim: str, axes: str) -> Sharding:
        return self.now.split(dim, self.now[dim] + axes)

    def _slices(self) -> None:
        for dim in self.now.dims:
            new = "".join(a for a in self.target[dim] if a not in self.home and a not in self.now.partial)
            if new:
                self._take("slice", new, self._grow(dim, new), dim=dim)

    def _reduce_scatters(self) -> None:
        for dim in self.now.dims:
            new = "".join(a for a in self.target[dim] if a in self.now.partial)
            if new:
                rest = "".join(a for a in self.now.partial if a not in new)
                after = Sharding(self.now.dims, self.now.axes, rest)
                self._take("reduce-scatter", new, after.split(dim, after[dim] + new), dim=dim)

    def _all_reduce(self) -> None:
        summed = "".join(a for a in self.now.partial if a not in self.target.partial)
        if summed:
            self._take("all-reduce", summed, self.now.summing(self.target.partial))

    def _all_to_alls(self) -> None:
        for dim in self.now.dims:
            leaving = [a for a in self.now[dim] if self.goal.get(a, dim) != dim]
            if not leaving:
                continue
            groups = {}
            for to in self.now.dims:
                if axes := "".join(a for a in self.target[to] if a in leaving):
                    groups[to] = axes
            staying = "".join(a for a in self.now[dim] if a in self.goal and a not in leaving)
            gathered = "".join(a for a in self.now[dim] if a not in self.goal)
            self._arrange(dim, staying + gathered + "".join(reversed(groups.values())))
            for to, axes in groups.items():
                shrunk = self.now.split(dim, self.now[dim].removesuffix(axes))
                self._take("all-to-all", axes, shrunk.split(to, shrunk[to] + axes), dim=dim, to=to)

    def _all_gathers(self) -> None:
        for dim in self.now.dims:
            leaving = "".join(a for a in self.now[dim] if a not in self.goal)
            if leaving:
                staying = "".join(a for a in self.target[dim] if a in self.now[dim])
                if self.now[dim] != staying + leaving:
                    self._arrange(dim, staying + leaving)
                self._take("all-gather", leaving, self.now.split(dim, staying), dim=dim)

    def _arrange(self, dim: str, order: str) -> None:
        """Reorders the axes of `dim`, moving only those behind the common prefix."""
        old = self.now[dim]
        while old and old[0] == order[0]:
            old, order = old[1:], order[1:]
        if old:
            prefix = self.now[dim][: len(self.now[dim]) - len(old)]
            after = self.now.split(dim, prefix + order)
            self._take("collective-permute", old, after, dim=dim, order=order)
