"""One step of a resharding on a device's array: the local slice or the JAX collective that it is.

In blocks, shards travel stacked in front, and are put in place by a copy: along an inner dim XLA's CPU
backend would transpose the array, element by element, to make that dim the outermost and back (the gather of
a weight's columns took 2.4 times as long). Elsewhere a collective along any dim holds no more than what it
takes and gives. Knows nothing about the program; `sharding.reshard` chose the steps. Axes of size 1 start no
collective.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from partita.sharding.interleave import INTERLEAVED, from_blocks, to_blocks
from partita.sharding.layout import product
from partita.sharding.reshard import Step


def move(value: jax.Array, step: Step, sizes: Mapping[str, int], blocks: bool = False) -> jax.Array:
    """A device's part after `step`, inside `shard_map` over a mesh whose axes have `sizes` devices.

    A tensor of all layers has no dim for them in its sharding: they are in front.
    """
    axes = tuple(a for a in step.axes if sizes[a] > 1)
    if not axes:
        return value
    front = value.ndim - len(step.before.dims)
    dim = front + step.before.dims.index(step.dim) if step.dim else -1
    to = front + step.before.dims.index(step.to) if step.to else -1
    shards = [sizes[a] for a in axes]
    if step.gains == INTERLEAVED:
        value = to_blocks(value, to if step.to else dim, shards)
    match step.kind:
        case "slice":
            size = value.shape[dim] // product(sizes, step.axes)
            value = jax.lax.dynamic_slice_in_dim(value, jax.lax.axis_index(axes) * size, size, dim)
        case "reduce-scatter":
            if blocks:
                value = jax.lax.psum_scatter(_blocks(value, dim, shards), axes)
            else:
                value = jax.lax.psum_scatter(value, axes, scatter_dimension=dim, tiled=True)
        case "all-reduce":
            value = jax.lax.psum(value, axes)
        case "all-to-all":
            if blocks:
                found = jax.lax.all_to_all(_blocks(value, to, shards), axes, split_axis=0, concat_axis=0)
                value = _whole(found, dim)
            else:
                value = jax.lax.all_to_all(value, axes, split_axis=to, concat_axis=dim, tiled=True)
        case "all-gather":
            if blocks:
                value = _whole(jax.lax.all_gather(value, axes), dim)
            else:
                value = jax.lax.all_gather(value, axes, axis=dim, tiled=True)
        case "collective-permute":
            value = _permute(value, step, axes, sizes)
    return from_blocks(value, dim, shards) if step.loses == INTERLEAVED else value


def _blocks(value: jax.Array, dim: int, shards: Sequence[int]) -> jax.Array:
    """The shards of a dim, stacked in front."""
    shape = value.shape
    cut = value.reshape(*shape[:dim], math.prod(shards), -1, *shape[dim + 1 :])
    return jnp.moveaxis(cut, dim, 0)


def _whole(blocks: jax.Array, dim: int) -> jax.Array:
    """Shards of a dim that are stacked in front, joined along it."""
    shape = blocks.shape[1:]
    return jnp.moveaxis(blocks, 0, dim).reshape(*shape[:dim], -1, *shape[dim + 1 :])


def _permute(value: jax.Array, step: Step, axes: tuple[str, ...], sizes: Mapping[str, int]) -> jax.Array:
    if not step.reorders(sizes):
        return value
    order = tuple(a for a in step.order if sizes[a] > 1)
    mesh = {a: n for a, n in sizes.items() if a in axes}
    if step.dim == INTERLEAVED:  # its first axis counts first, a block's last
        axes, order = axes[::-1], order[::-1]
    return jax.lax.ppermute(value, tuple(mesh), _reordering(axes, order, mesh))


def _reordering(old: tuple[str, ...], new: tuple[str, ...], mesh: Mapping[str, int]) -> list[tuple[int, int]]:
    """(source, destination) pairs that take shards from order `old` of the axes to order `new`.

    Block number b lies at the device whose coordinates spell b in the order of `old`; it belongs at the
    one whose coordinates spell b in the order of `new`. `ppermute` numbers devices in the mesh's order.
    """

    def device(block: int, order: tuple[str, ...]) -> int:
        place = {}
        for axis in reversed(order):
            block, place[axis] = divmod(block, mesh[axis])
        number = 0
        for axis, size in mesh.items():
            number = number * size + place[axis]
        return number

    return [(device(b, old), device(b, new)) for b in range(product(mesh, "".join(old)))]
