"""Looped collective einsums: a gather or scatter taken apart, each piece sent while another is multiplied.

Pope et al. 2022, section 3.5 (after Wang et al. 2023). The chips of some mesh axes form a ring in the order
of their shards. What an all-gather would bring before the product arrives shard by shard from the neighbours
(`gathered_products`); what a reduce-scatter would sum after it is summed on the way to the chip that keeps it
(`scattered_product`). A piece is sent by a permutation that does not depend on the product next to it, so
that a compiler may run both at once. One way round, K - 1 shards pass one after the other; both ways round,
as many in half the time, the farthest shard half on each side. Bytes are those of the collective.

Works on a device's own arrays inside `jax.shard_map`, unrolled over the ring. Knows nothing about shardings,
number formats or which of the ways is fastest; the caller says what a product is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

Product = Callable[[str, jax.Array, jax.Array], jax.Array]
"""An einsum of its text and two arrays, in the format that its results are summed in."""


@dataclass(frozen=True)
class Ring:
    """The chips along `axes`, numbered as their shards are: the first axis counts first.

    `sizes` are those of all mesh axes, in the mesh's order. Axes of one chip are left out.
    """

    axes: tuple[str, ...]
    sizes: Mapping[str, int]
    two_way: bool
    """Whether shards go both ways round at once."""

    @staticmethod
    def over(axes: str, sizes: Mapping[str, int], two_way: bool) -> Ring:
        return Ring(tuple(a for a in axes if sizes[a] > 1), sizes, two_way)

    @property
    def chips(self) -> int:
        return math.prod(self.sizes[a] for a in self.axes)

    def shard(self, distance: int) -> jax.Array | int:
        """Number of the shard that belongs to the chip `distance` further on than this one."""
        if not self.axes:
            return 0
        return jax.lax.rem(jax.lax.axis_index(self.axes) + distance % self.chips, self.chips)

    def pull(self, value: jax.Array, distance: int) -> jax.Array:
        """What the chip `distance` further on holds."""
        chips, named = self.chips, tuple(a for a in self.sizes if a in self.axes)
        numbers = [self._number(shard) for shard in range(chips)]
        pairs = [(numbers[(shard + distance) % chips], numbers[shard]) for shard in range(chips)]
        return jax.lax.ppermute(value, named, pairs)

    def _number(self, shard: int) -> int:
        """`ppermute`'s number of the chip of a shard: it counts in the mesh's order of the axes."""
        place = {}
        for axis in reversed(self.axes):
            shard, place[axis] = divmod(shard, self.sizes[axis])
        number = 0
        for axis, size in self.sizes.items():
            if axis in place:
                number = number * size + place[axis]
        return number


@dataclass(frozen=True)
class Sums:
    """The format that sums travel in, and what each chip's own product is first multiplied by and then
    increased by: arrays in the result's dims, each dim of `times` 1 or whole."""

    format: Any
    times: jax.Array | None = None
    plus: jax.Array | None = None


def gathered_products(
    travels: jax.Array,
    dims: str,
    dim: str,
    others: Sequence[tuple[str, jax.Array]],
    ring: Ring,
    product: Product,
) -> tuple[jax.Array, list[jax.Array]]:
    """`travels` gathered along `dim`, and einsum(text, that, other) for each (text, other), in one round.

    `travels` is this chip's shard, its dims `dims` the first operand of every text ("BLE,EF->BLF"). Where
    `dim` is summed over, the others hold all of it and the shards' products are added up; where it stays in
    the result, each shard's product is a block of that.
    """
    axis = dims.index(dim)
    size = travels.shape[axis]
    found: list[Any] = [None] * len(others)
    shards = {}
    for distance, shard in _arrivals(travels, axis, ring):
        shards[distance % ring.chips] = shard
        start = ring.shard(distance) * size
        for i, (text, other) in enumerate(others):
            (_, right), out = text.split("->")[0].split(","), text.split("->")[1]
            if dim in right:
                at = right.index(dim)
                other = jax.lax.dynamic_slice_in_dim(other, start, size, at) if ring.axes else other
            part = product(text, shard, other)
            if dim not in out:
                found[i] = part if found[i] is None else found[i] + part
            elif not ring.axes:
                found[i] = part
            else:
                at = out.index(dim)
                if found[i] is None:
                    shape = tuple(n * ring.chips if j == at else n for j, n in enumerate(part.shape))
                    found[i] = jnp.zeros(shape, part.dtype)
                found[i] = jax.lax.dynamic_update_slice_in_dim(found[i], part, start, at)
    if not ring.axes:
        return travels, found
    in_turn = jnp.concatenate([shards[distance] for distance in range(ring.chips)], axis=axis)
    return jnp.roll(in_turn, ring.shard(0) * size, axis), found


def scattered_product(
    text: str,
    first: jax.Array,
    second: jax.Array,
    dim: str,
    ring: Ring,
    product: Product,
    sums: Sums,
) -> jax.Array:
    """einsum(text, first, second) x times + plus, summed over the ring, and scattered along a `dim` of that.

    Sums are made in the format of `product`'s, in which the result is.
    """
    (left, right), out = text.split("->")[0].split(","), text.split("->")[1]
    chips, at = ring.chips, out.index(dim)

    def part(distance: int) -> jax.Array:
        """This chip's share of what the chip `distance` further on keeps."""

        def cut(operand: jax.Array, dims: str) -> jax.Array:
            axis = dims.find(dim)
            if chips == 1 or axis < 0 or operand.shape[axis] == 1:
                return operand
            size = operand.shape[axis] // chips
            return jax.lax.dynamic_slice_in_dim(operand, ring.shard(distance) * size, size, axis)

        found = product(text, cut(first, left), cut(second, right))
        if sums.times is not None:
            found = found * cut(sums.times, out)
        return found if sums.plus is None else found + cut(sums.plus, out)

    def pull(summed: jax.Array | None, distance: int) -> jax.Array | None:
        return None if summed is None else ring.pull(summed.astype(sums.format), distance)

    if not ring.two_way:
        summed = part(1 - chips)
        for distance in range(2 - chips, 1):
            summed = _plus(part(distance), pull(summed, 1), at)
        return summed
    back, on = None, None  # sums on their way to the chips behind this one, and to those further on
    if chips % 2 == 0:
        back, on = _halves(part(chips // 2), at)
    for distance in range((chips - 1) // 2, 0, -1):
        back = _plus(part(-distance), pull(back, 1), at)
        on = _plus(part(distance), pull(on, -1), at, last=True)
    return _plus(_plus(part(0), pull(back, 1), at), pull(on, -1), at, last=True)


def _arrivals(shard: jax.Array, at: int, ring: Ring) -> Iterator[tuple[int, jax.Array]]:
    """This chip's shard and then those of all others, each with how much further on its chip is."""
    chips = ring.chips
    if not ring.two_way:
        for distance in range(chips - 1):
            nearer, shard = shard, ring.pull(shard, 1)  # sent before the product it need not wait for
            yield distance, nearer
        yield chips - 1, shard
        return
    ahead = behind = shard
    for distance in range((chips - 1) // 2):
        nearer = ahead, behind
        ahead, behind = ring.pull(ahead, 1), ring.pull(behind, -1)
        yield from _both(distance, nearer)
    if chips % 2:
        yield from _both(chips // 2, (ahead, behind))
        return
    (left, _), (_, right) = _halves(ahead, at), _halves(behind, at)
    halves = [ring.pull(half, by) for half, by in ((left, 1), (right, -1)) if half is not None]
    yield from _both(chips // 2 - 1, (ahead, behind))
    yield chips // 2, jnp.concatenate(halves, axis=at)


def _both(distance: int, shards: tuple[jax.Array, jax.Array]) -> Iterator[tuple[int, jax.Array]]:
    """The shards as far ahead and behind; this chip's own is one."""
    yield distance, shards[0]
    if distance:
        yield -distance, shards[1]


def _halves(value: jax.Array, at: int) -> tuple[jax.Array | None, jax.Array]:
    """Cut along a dim; there is no first half of one entry."""
    first, second = jnp.split(value, [value.shape[at] // 2], axis=at)
    return (first if first.shape[at] else None), second


def _plus(part: jax.Array, arrived: jax.Array | None, at: int, last: bool = False) -> jax.Array:
    """The sum; where but half of the entries arrived, the first or the last ones, to those."""
    if arrived is None:
        return part
    arrived = arrived.astype(part.dtype)
    missing = part.shape[at] - arrived.shape[at]
    if not missing:
        return part + arrived
    if last:
        untouched, summed = jnp.split(part, [missing], axis=at)
        return jnp.concatenate([untouched, summed + arrived], axis=at)
    summed, untouched = jnp.split(part, [arrived.shape[at]], axis=at)
    return jnp.concatenate([summed + arrived, untouched], axis=at)
