"""Keys and values on their way from prefill to decode: into a ring of the window, to more room, into slots.

On one device's arrays, inside `jax.shard_map`; what moves between devices is the program's `reshard_cache`.
Knows nothing about layers, layouts or requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from partita.engine.attention_ops import positions_in
from partita.engine.local import Local
from partita.engine.ops import JaxOps
from partita.sharding.interleave import INTERLEAVED
from partita.sharding.layout import product


def ringed(ops: JaxOps, part: Local, lengths: Local, count: int) -> Local:
    """Keys or values [B K S D] of sequences of `lengths` [B] tokens, in a ring of `count` places in all.

    As they are where there are no more than that. Rings of a multiple of the devices that S is dealt to keep
    every position on its device.
    """
    shards = product(ops.sizes, part.sharding[INTERLEAVED])
    held = part.value.shape[part.sharding.dims.index(INTERLEAVED)] * shards
    if held <= count:
        return part
    own = ops.to(lengths, f"B_{part.sharding['B']}").value
    places, _ = ops.places(part.sharding[INTERLEAVED], count // shards)
    positions = positions_in(places, own, count)  # [B, places]; below zero: nothing yet
    index = jnp.maximum(positions, 0) % held // shards
    return mapped(part, lambda value, axis: _rows(value, axis, index))


def roomy(part: Local, local: int) -> Local:
    """The same with `local` places on this device, new ones at the end."""
    return mapped(part, lambda value, axis: _padded(value, axis, local))


def into_slots(
    cache: Local, part: Local, rows: jax.Array, slots: jax.Array, offset: jax.Array | int
) -> Local:
    """The cache of slots, keys or values, with `rows` [n] of others', whose B is whole, in `slots` [n].

    offset: number of this device's first slot; slots of other devices, and those below zero, are left out.
    """
    count = cache.value.shape[0]
    own = slots - offset
    own = jnp.where((slots >= 0) & (own >= 0) & (own < count), own, count)

    def put(old: jax.Array, new: jax.Array) -> jax.Array:
        return old.at[own].set(new[rows], mode="drop")

    value = put(cache.value, part.value)
    if cache.scale is None or part.scale is None:
        return replace(cache, value=value)
    return replace(
        cache, value=value, scale=replace(cache.scale, value=put(cache.scale.value, part.scale.value))
    )


def mapped(part: Local, change: Callable[[jax.Array, int], jax.Array]) -> Local:
    """A change of the values along S and, of int8, of their scales alike."""
    scale = part.scale and mapped(part.scale, change)
    return replace(part, value=change(part.value, part.sharding.dims.index(INTERLEAVED)), scale=scale)


def _rows(value: jax.Array, axis: int, index: jax.Array) -> jax.Array:
    """value [B ... S ...] at places `index` [B n] of each sequence."""
    shape = [n if at == 0 else 1 for at, n in enumerate(value.shape)]
    shape[axis] = index.shape[1]
    return jnp.take_along_axis(value, index.reshape(shape), axis=axis)


def _padded(value: jax.Array, axis: int, places: int) -> jax.Array:
    return jnp.pad(value, [(0, places - n if at == axis else 0) for at, n in enumerate(value.shape)])
