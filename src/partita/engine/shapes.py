"""Parameters and caches as arrays on a mesh: shape, dtype and sharding of each, before there is any.

Knows no checkpoint, no step and no request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from partita.engine.local import Local
from partita.engine.ops import DTYPES
from partita.sharding.layout import Layout, Storage, ceil_to, product
from partita.sharding.mesh import Mesh
from partita.sharding.spec import Sharding, parse
from partita.specs.formats import Formats
from partita.specs.model import Model
from partita.specs.parameters import all_parameters, scale_name

WHOLE = PartitionSpec()


class Part(NamedTuple):
    """The keys of a layer [B K D S], or its values [B K S D], and in int8 a scale for each row [B K S]."""

    value: Any
    scale: Any = None


Cache = tuple[tuple[Part, Part], ...]
"""Of all layers, keys and values; of arrays, of their shapes, or of how they are split."""


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
        """The sharding of every parameter by its full name, scales of int8 matrices included."""
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

    def whole_turns(self, positions: int) -> int:
        """The next number of positions from here up that deal out evenly in both phases."""
        return ceil_to(positions, product(self.mesh.size, self.storage.s_axes))

    def places(self, layer: int, capacity: int, queries: int = 1) -> int:
        """Places that a layer's cache needs for `capacity` tokens: all, or a ring of the window and the
        further queries of a step that see what was in it before them."""
        if not self.model.is_local(layer):
            return capacity
        return self.whole_turns(min(capacity, (self.model.window or 0) + queries - 1))

    def cache(self, layout: Layout, batch: int, capacity: int, queries: int = 1) -> Cache:
        """The cache of all layers in one phase's sharding, S as it is dealt out; for steps of `queries`."""
        keys, values = kept(layout)
        places = [self.places(layer, capacity, queries) for layer in range(self.model.layers)]
        return tuple((self._part(keys, batch, n), self._part(values, batch, n)) for n in places)

    def _part(self, sharding: Sharding, batch: int, places: int) -> Part:
        sizes, dtype = {**self.padded, "B": batch, "S": places}, DTYPES[self.formats.kv]

        def shape(split: Sharding, dtype: Any) -> jax.ShapeDtypeStruct:
            lengths = tuple(sizes[dim] for dim in split.dims)
            return jax.ShapeDtypeStruct(lengths, dtype, sharding=self.named(self.spec(split)))

        scale = shape(sharding.without("D"), jnp.float32) if dtype == jnp.int8 else None
        return Part(shape(sharding, dtype), scale)

    def cache_specs(self, keys: Sharding, values: Sharding) -> Cache:
        """How the cache of all layers is split."""
        scaled = self.formats.kv == "int8"
        pair = [Part(self.spec(s), self.spec(s.without("D")) if scaled else None) for s in (keys, values)]
        return ((pair[0], pair[1]),) * self.model.layers


def kept(layout: Layout) -> tuple[Sharding, Sharding]:
    """How a layout splits the keys and the values of a layer."""
    return parse(layout.keys), parse(layout.cache)


def local_part(part: Part, sharding: Sharding) -> Local:
    """A device's part of keys or values as the program takes it."""
    scale = None if part.scale is None else Local(part.scale, sharding.without("D"))
    return Local(part.value, sharding, scale=scale)


def plain_part(t: Local) -> Part:
    return Part(t.value, None if t.scale is None else t.scale.value)
