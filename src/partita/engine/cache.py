"""Parameters and caches as arrays on a mesh, before there is any; and a cache's way from prefill to decode.

`Shapes` says the shape, dtype and sharding of each. On their way keys and values come into a ring of the
window, to more room and into slots, on one device's arrays inside `jax.shard_map`; what moves between devices
is the program's `reshard_cache`. Knows no checkpoint, no step and no request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from partita.engine.attention_ops import positions_in
from partita.engine.local import Local
from partita.engine.ops import DTYPES, JaxOps
from partita.sharding.interleave import INTERLEAVED
from partita.sharding.layout import Layout, Storage
from partita.sharding.mesh import Mesh
from partita.sharding.padding import ceil_to, product
from partita.sharding.spec import Sharding, parse
from partita.specs.formats import Formats
from partita.specs.model import Model
from partita.specs.parameters import all_parameters, scale_name

WHOLE = PartitionSpec()


class CachePart(NamedTuple):
    """The keys of a layer [B K D S], or its values [B K S D], and in int8 a scale for each row [B K S]."""

    value: Any
    scale: Any = None


Cache = tuple[tuple[CachePart, CachePart], ...]
"""Keys and values of all layers: arrays, their shapes, or how they are split."""


class Shapes:
    """What a model on a mesh is made of, its weights stored as `storage` says."""

    def __init__(self, model: Model, mesh: Mesh, storage: Storage, formats: Formats, devices=None):
        self.model, self.mesh, self.storage, self.formats = model, mesh, storage, formats
        devices = jax.devices() if devices is None else devices
        grid = np.array(devices[: mesh.chips]).reshape(mesh.sizes)
        self.device_mesh = jax.sharding.Mesh(grid, tuple(mesh.axes), (AxisType.Explicit,) * len(mesh.axes))
        self.padded = storage.padded(model, mesh.size)
        self._rows = all_parameters(model)
        self.shardings = self._every()

    def _every(self) -> dict[str, Sharding]:
        """How every parameter is split, by its full name, scales of int8 matrices included."""
        stored = {name: parse(text) for name, text in self.storage.weights(self.model).items()}
        found = {}
        for name, row in self._rows.items():
            found[name] = stored[name.rpartition(".")[2]]
            if self.formats.weights == "int8" and row.quantisable:
                found[scale_name(name)] = found[name].only(row.channels)
        return found

    def spec(self, sharding: Sharding) -> PartitionSpec:
        """JAX's form of a sharding."""
        return PartitionSpec(*[tuple(axes) or None for axes in sharding.axes])

    def named(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.device_mesh, spec)

    def parameter_specs(self) -> dict[str, PartitionSpec]:
        return {name: self.spec(sharding) for name, sharding in self.shardings.items()}

    def parameters(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shape (padded), dtype and sharding of every parameter, those of block i as `layers.{i}.{name}`."""
        found = {}
        for name, row in self._rows.items():
            sizes = row.padded_sizes(self.padded)
            found[name] = self._array(name, sizes, DTYPES[row.number_format(self.formats)])
            if scale_name(name) in self.shardings:
                found[scale_name(name)] = self._array(scale_name(name), sizes, jnp.float32)
        return found

    def _array(self, name: str, sizes: Mapping[str, int], dtype: Any) -> jax.ShapeDtypeStruct:
        sharding = self.shardings[name]
        shape = tuple(sizes[dim] for dim in sharding.dims)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.named(self.spec(sharding)))

    # -- caches -----------------------------------------------------------------------------------------

    def divisible(self, positions: int) -> int:
        """The next number of positions from here up that divide over the devices of both phases."""
        return ceil_to(positions, product(self.mesh.size, self.storage.s_axes))

    def places(self, layer: int, capacity: int, queries: int = 1) -> int:
        """Places that a layer's cache needs for `capacity` tokens: all, or a ring of the window and the
        further queries of a step that see what was in it before them."""
        if not self.model.is_local(layer):
            return capacity
        return self.divisible(min(capacity, (self.model.window or 0) + queries - 1))

    def cache(self, layout: Layout, batch: int, capacity: int, queries: int = 1) -> Cache:
        """The cache of all layers in one phase's sharding, for steps of `queries`."""
        keys, values = kept(layout)
        places = [self.places(layer, capacity, queries) for layer in range(self.model.layers)]
        return tuple((self._part(keys, batch, n), self._part(values, batch, n)) for n in places)

    def _part(self, sharding: Sharding, batch: int, places: int) -> CachePart:
        sizes, dtype = {**self.padded, "B": batch, "S": places}, DTYPES[self.formats.kv]

        def shape(split: Sharding, dtype: Any) -> jax.ShapeDtypeStruct:
            lengths = tuple(sizes[dim] for dim in split.dims)
            return jax.ShapeDtypeStruct(lengths, dtype, sharding=self.named(self.spec(split)))

        scale = shape(sharding.without("D"), jnp.float32) if dtype == jnp.int8 else None
        return CachePart(shape(sharding, dtype), scale)

    def cache_specs(self, keys: Sharding, values: Sharding) -> Cache:
        """How the cache of all layers is split."""
        scaled = self.formats.kv == "int8"
        pair = [
            CachePart(self.spec(s), self.spec(s.without("D")) if scaled else None) for s in (keys, values)
        ]
        return ((pair[0], pair[1]),) * self.model.layers


def kept(layout: Layout) -> tuple[Sharding, Sharding]:
    """How a layout splits the keys and the values of a layer."""
    return parse(layout.keys), parse(layout.cache)


def local_part(part: CachePart, sharding: Sharding) -> Local:
    """A device's part of keys or values as the program takes it."""
    scale = None if part.scale is None else Local(part.scale, sharding.without("D"))
    return Local(part.value, sharding, scale=scale)


def plain_part(t: Local) -> CachePart:
    return CachePart(t.value, None if t.scale is None else t.scale.value)


# -- from prefill to decode -----------------------------------------------------------------------------


def ringed(ops: JaxOps, part: Local, lengths: Local, count: int, window: int | None) -> Local:
    """Keys or values [B K S D] of sequences of `lengths` [B] tokens, in a ring of `count` places in all.

    window: of a local layer; so many places or more may be a ring already, which has another length then.
    As they are where they are no ring and no more than that. In a ring of a multiple of the devices that S
    is interleaved over, every position stays on its device.
    """
    shards = product(ops.sizes, part.sharding[INTERLEAVED])
    held = part.value.shape[part.sharding.dims.index(INTERLEAVED)] * shards
    if held == count or (held < count and (window is None or held < window)):
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
    A row may have fewer places than a slot, whose others become zeros. One slot is written after the other,
    in place: all at once, XLA would first make a copy of the whole cache.
    """
    count = cache.value.shape[0]
    own = slots - offset
    here = (slots >= 0) & (own >= 0) & (own < count)
    own = jnp.clip(own, 0, count - 1)
    until = jnp.max(jnp.where(here, jnp.arange(1, len(slots) + 1), 0))  # as a rule few, and first

    def put(old: jax.Array, new: jax.Array) -> jax.Array:
        further = [(0, 0, 0)] + [(0, n - m, 0) for n, m in zip(old.shape[1:], new.shape[1:], strict=True)]

        def one(number: jax.Array, old: jax.Array) -> jax.Array:
            row = jax.lax.dynamic_index_in_dim(new, rows[number])
            row = jax.lax.pad(row, jnp.zeros((), row.dtype), further)
            found = jnp.where(here[number], row, jax.lax.dynamic_index_in_dim(old, own[number]))
            return jax.lax.dynamic_update_index_in_dim(old, found, own[number], 0)

        return jax.lax.fori_loop(0, until, one, old)

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
