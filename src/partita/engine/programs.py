"""The compiled steps: prefill, the switch of the cache between layouts, decode.

Each is the one program of `partita.program` inside `jax.shard_map`, for one layout, jitted; shapes of the
batch are whatever it is called with. Knows shapes and shardings, but no checkpoint and no request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from partita.engine.ops import DTYPES, JaxOps, Local
from partita.engine.requests import check_model
from partita.program import transformer
from partita.program.parameters import layer_parameter_shapes, parameter_shapes
from partita.sharding.layout import Layout, Storage, product
from partita.sharding.mesh import Mesh
from partita.sharding.spec import Sharding, parse
from partita.specs.formats import Formats
from partita.specs.model import Model


class Programs:
    """The steps of one model on one mesh, its weights stored as `storage` says.

    Raises InputError for a model with features that the engine does not run.
    """

    def __init__(self, model: Model, mesh: Mesh, storage: Storage, formats: Formats, devices=None):
        check_model(model)
        self.model, self.mesh, self.storage, self.formats = model, mesh, storage, formats
        devices = jax.devices() if devices is None else devices
        grid = np.array(devices[: mesh.chips]).reshape(mesh.sizes)
        self.device_mesh = jax.sharding.Mesh(grid, tuple(mesh.axes), (AxisType.Explicit,) * len(mesh.axes))
        self.shardings = {name: parse(text) for name, text in storage.weights(model).items()}
        self.layer_names = tuple(n for n in self.shardings if n in layer_parameter_shapes(model))
        # one compiled step per layout, for the life of this object
        self.prefill, self.decode = cache(self._prefill), cache(self._decode)
        self.switch, self.logits = cache(self._switch), cache(self._logits)

    # -- parameters and caches as arrays ----------------------------------------------------------------

    def spec(self, sharding: Sharding, stacked: bool = False) -> PartitionSpec:
        """JAX's form of a sharding; `stacked` puts an unsplit axis of all layers in front."""
        return PartitionSpec(*[None] * stacked, *[tuple(axes) or None for axes in sharding.axes])

    def named(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.device_mesh, spec)

    def parameter_specs(self) -> dict[str, PartitionSpec]:
        return {n: self.spec(s, stacked=n in self.layer_names) for n, s in self.shardings.items()}

    def parameters(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shape (padded), dtype and sharding of every parameter; layers are stacked in front."""
        shapes = {**parameter_shapes(self.model), **layer_parameter_shapes(self.model)}
        padded = self.storage.padded(self.model, self.mesh.size)
        found = {}
        for name, spec in self.parameter_specs().items():
            dims = self.shardings[name].dims
            shape = tuple(padded.get(d, n) for d, n in zip(dims, shapes[name], strict=True))
            if name in self.layer_names:
                shape = (self.model.layers, *shape)
            dtype = jnp.float32 if name.endswith("norm") else DTYPES[self.formats.weights]
            found[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=self.named(spec))
        return found

    def cache(self, layout: Layout, batch: int, capacity: int) -> jax.ShapeDtypeStruct:
        """The cache of all layers [layers, 2, B, S, K, D] in one phase's sharding, S as it is dealt out."""
        sizes = self.storage.padded(self.model, self.mesh.size)
        shape = (self.model.layers, 2, batch, capacity, sizes["K"], sizes["D"])
        sharding = self.named(self.spec(parse(layout.cache), stacked=True))
        return jax.ShapeDtypeStruct(shape, DTYPES[self.formats.kv], sharding=sharding)

    # -- the steps --------------------------------------------------------------------------------------

    def _prefill(self, layout: Layout) -> Callable[..., Any]:
        """(parameters, tokens [B L], lengths [B]) -> next tokens [B], keys and values of the prompt."""

        def step(parameters, tokens, lengths):
            ops = self._ops()
            logits, kv = self._forward(ops, layout, parameters, tokens, _positions(tokens), lengths, None)
            return transformer.greedy(ops, logits, self.model.vocabulary).value, kv.value

        cache = self.spec(parse(layout.cache), stacked=True)
        return self._jit(step, (self.parameter_specs(), _WHOLE, _WHOLE), (_WHOLE, cache))

    def _logits(self, layout: Layout) -> Callable[..., Any]:
        """(parameters, tokens [B L]) -> float32 logits [B L V] of every token, V padded."""

        def step(parameters, tokens):
            logits, _ = self._forward(self._ops(), layout, parameters, tokens, _positions(tokens), None, None)
            return logits.value

        out = self.spec(parse(transformer.logits_sharding(layout)))
        return self._jit(step, (self.parameter_specs(), _WHOLE), out)

    def _switch(self, source: Layout, target: Layout, capacity: int) -> Callable[..., Any]:
        """(keys and values of the prompt) -> cache for `capacity` tokens in the sharding of `target`.

        Positions are dealt out over chips, so that a cache grows by places at the end of every chip.
        """
        room = capacity // product(self.mesh.size, target.attn_s)

        def step(kv):
            sharding = parse(f"A {source.cache}")
            value = transformer.switch(self._ops(), Local(kv, sharding), target).value
            return jnp.pad(value, [(0, room - n if i == 3 else 0) for i, n in enumerate(value.shape)])

        specs = [self.spec(parse(layout.cache), stacked=True) for layout in (source, target)]
        return self._jit(step, (specs[0],), specs[1])

    def _decode(self, layout: Layout) -> Callable[..., Any]:
        """(parameters, cache, tokens [B], positions [B]) -> next tokens [B], the cache (donated)."""

        def step(parameters, cache, tokens, positions):
            ops = self._ops()
            logits, cache = self._forward(
                ops, layout, parameters, tokens[:, None], positions[:, None], None, cache
            )
            return transformer.greedy(ops, logits, self.model.vocabulary).value, cache.value

        cache = self.spec(parse(layout.cache), stacked=True)
        in_specs = (self.parameter_specs(), cache, _WHOLE, _WHOLE)
        return self._jit(step, in_specs, (_WHOLE, cache), donate=(1,))

    def _ops(self) -> JaxOps:
        return JaxOps(self.mesh.size, self.formats, self.model.d_model)

    def _forward(
        self,
        ops: JaxOps,
        layout: Layout,
        parameters: Mapping[str, jax.Array],
        tokens: jax.Array,
        positions: jax.Array,
        lengths: jax.Array | None,
        cache: jax.Array | None,
    ) -> tuple[Local, Local]:
        weights = {name: Local(value, self.shardings[name]) for name, value in parameters.items()}
        layers = {name: weights.pop(name) for name in self.layer_names}
        whole = parse("B L")
        return transformer.forward(
            ops,
            self.model,
            layout,
            weights,
            layers,
            Local(tokens, whole),
            Local(positions, whole),
            None if lengths is None else Local(lengths, parse("B")),
            None if cache is None else Local(cache, parse(layout.cache)),
        )

    def _jit(self, step: Callable[..., Any], in_specs, out_specs, donate: tuple[int, ...] = ()):
        # check_vma cannot know that a gathered value is the same everywhere; tests compare the replicas
        mapped = jax.shard_map(
            step, mesh=self.device_mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
        return jax.jit(mapped, donate_argnums=donate)


_WHOLE = PartitionSpec()


def _positions(tokens: jax.Array) -> jax.Array:
    return jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
