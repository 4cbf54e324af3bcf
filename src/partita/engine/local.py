"""A tensor as the JAX interpreter sees it: one device's part, its sharding, and what is still to be done.

Knows no operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from partita.sharding.spec import Sharding


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["value", "scale", "times", "plus"],
    meta_fields=["sharding", "settles"],
)
@dataclass(frozen=True)
class Local:
    """One device's part of a tensor."""

    value: jax.Array
    sharding: Sharding
    settles: Any = None
    """The dtype it takes once fully summed; None where it keeps its own."""
    scale: Local | None = None
    """What int8 values are multiplied by, for some of the dims."""
    times: Local | None = None
    """What a partial sum is multiplied by once it is summed, for some of its dims; with attention's shares,
    what their product is multiplied by."""
    plus: Local | None = None
    """What is then added to a partial sum."""


def aligned(value: jax.Array, dims: str, target: str) -> jax.Array:
    """An array [dims] in a shape that broadcasts against one [target], which has these dims in this order."""
    sizes = dict(zip(dims, value.shape, strict=True))
    return value.reshape([sizes.get(dim, 1) for dim in target])


class Places:
    """Where a device's part lies on a mesh whose axes have `sizes` devices."""

    sizes: Mapping[str, int]

    def _split(self, axes: str) -> tuple[str, ...]:
        """Those of `axes` that have more than one device."""
        return tuple(a for a in axes if self.sizes[a] > 1)

    def _number(self, axes: tuple[str, ...]) -> jax.Array:
        """This device's number among those that positions are interleaved over, first axis first."""
        return jax.lax.axis_index(axes[::-1])

    def offset(self, axes: str, local: int) -> jax.Array | int:
        """Where this device's part of a dim of `local` entries starts, the dim being split over `axes`."""
        split = self._split(axes)
        return jax.lax.axis_index(split) * local if split else 0
