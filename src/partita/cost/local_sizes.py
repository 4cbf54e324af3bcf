"""What one chip holds of a tensor: the shards that a group of mesh axes makes, elements, bytes.

Sizes are Python ints (exact) or NumPy float arrays of many candidates. Every split divides: dims are padded
before they are split.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from partita.cost.ledger import Sized
from partita.cost.number import Number
from partita.sharding.padding import product
from partita.specs.formats import BYTES


class LocalSizes:
    """Sizes on one chip of a mesh whose axes have `sizes` chips; what was computed once is kept."""

    def __init__(self, sizes: Mapping[str, Number]):
        self.sizes = sizes
        self._shards: dict[str, Number] = {}
        self._bytes: dict[tuple, Number] = {}
        self._counted: list[tuple[Number, ...]] = []

    def shards(self, axes: str) -> Number:
        """How many shards `axes` make."""
        found = self._shards.get(axes)
        if found is None:
            found = self._shards[axes] = product(self.sizes, axes)
        return found

    def elements(self, t: Sized) -> Number:
        """Elements one chip holds."""
        return self.share(t.sizes, t.sharding.dims, t.sharding.axes)

    def share(
        self, sizes: Mapping[str, Number], dims: str, groups: Iterable[str], times: Number = 1
    ) -> Number:
        """The product of the sizes of `dims`, or a chip's part of it where they are split over these groups
        of axes.

        Arrays of candidates broadcast; those of B and S are the large ones: they come last, and `times`
        before them.
        """
        large = [sizes[d] for d in dims if d in "BS"]
        whole = math.prod(sizes[d] for d in dims if d not in "BS")
        shards = math.prod(self.shards(axes) for axes in groups if axes)
        if isinstance(shards, int) and isinstance(whole, int) and all(isinstance(n, int) for n in large):
            return whole * math.prod(large) // shards * times
        found = whole * times / shards
        for number in large:
            found = found * number
        return found

    def bytes(self, t: Sized) -> Number:
        """Bytes one chip holds; kept, since most operations need those of the operation before."""
        sizes = tuple(t.sizes[d] for d in t.sharding.dims)
        key = (t.sharding.dims, t.sharding.axes, t.sharding.partial, t.format, t.settles, *map(id, sizes))
        found = self._bytes.get(key)
        if found is None:
            found = self.share(t.sizes, t.sharding.dims, t.sharding.axes, self._width(t))
            self._bytes[key] = found
            self._counted.append(sizes)  # an id is a number's own while the number lives
        return found

    def _width(self, t: Sized) -> Number:
        """Bytes of an element; a partial sum over axes of one chip is whole, and in the format it settles
        in."""
        travels = BYTES[t.format]
        if not t.sharding.partial or t.format == t.settles:
            return travels
        settles, over = BYTES[t.settles], self.shards(t.sharding.partial)
        if isinstance(over, int):
            return settles if over == 1 else travels
        return np.where(over == 1, settles, travels)
