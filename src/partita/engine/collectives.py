"""One step of a resharding on a device's array: the local slice or the JAX collective that it is.

In blocks, shards travel stacked in front, and are put in place by a copy, as XLA's CPU backend needs it
(`cpu.py`). Elsewhere a collective along any dim holds no more than what it takes and gives. Knows nothing
about the program; `sharding.reshard` chose the steps. Axes of size 1 start no collective.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax

from partita.engine import cpu
from partita.sharding.interleave import INTERLEAVED, from_blocks, to_blocks
from partita.sharding.padding import product
from partita.sharding.reshard import ReshardStep


def move(value: jax.Array, step: ReshardStep, sizes: Mapping[str, int], blocks: bool = False) -> jax.Array:
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
                value = cpu.reduce_scatter(value, axes, dim, shards)
            else:
                value = jax.lax.psum_scatter(value, axes, scatter_dimension=dim, tiled=True)
        case "all-reduce":
            value = jax.lax.psum(value, axes)
        case "all-to-all":
            if blocks:
                value = cpu.all_to_all(value, axes, dim, to, shards)
            else:
                value = jax.lax.all_to_all(value, axes, split_axis=to, concat_axis=dim, tiled=True)
        case "all-gather":
            if blocks:
                value = cpu.all_gather(value, axes, dim)
            else:
                value = jax.lax.all_gather(value, axes, axis=dim, tiled=True)
        case "collective-permute":
            value = _permute(value, step, axes, sizes)
    return from_blocks(value, dim, shards) if step.loses == INTERLEAVED else value


def _permute(
    value: jax.Array, step: ReshardStep, axes: tuple[str, ...], sizes: Mapping[str, int]
) -> jax.Array:
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
