"""The compiled steps: prefill whole or in chunks, the cache's way to decode's layout and into slots, decode.

Prefill and decode end with the logits of the next token. The draws of it are programs of their own: every
kind of draw goes with the one step that gives logits, which takes far longer to compile. Each is the one
program of `partita.program` inside `jax.shard_map`, for one layout, jitted; shapes of the batch are whatever
it is called with. Knows shapes and shardings, but no checkpoint and no request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from partita.engine import cpu
from partita.engine.cache import (
    WHOLE,
    Cache,
    CachePart,
    Shapes,
    into_slots,
    kept,
    local_part,
    plain_part,
    ringed,
    roomy,
)
from partita.engine.draft_steps import DraftSteps
from partita.engine.draw_steps import DrawSteps
from partita.engine.local import Local
from partita.engine.ops import JaxOps
from partita.engine.requests import check_model
from partita.program import transformer
from partita.program.ops import Pass
from partita.program.options import XLA_CPU, Backend, RunOptions
from partita.program.sampling import logits_of_slots
from partita.program.transformer import logits_sharding
from partita.sharding.layout import Layout, Storage
from partita.sharding.mesh import Mesh
from partita.sharding.padding import product
from partita.sharding.spec import Sharding, parse
from partita.specs.formats import Formats
from partita.specs.model import Model
from partita.specs.parameters import scale_name


class Programs(Shapes):
    """The steps of one model on one mesh, its weights stored as `storage` says.

    Raises InputError for a model with features that the engine does not run.
    """

    def __init__(
        self,
        model: Model,
        mesh: Mesh,
        storage: Storage,
        formats: Formats,
        devices=None,
        run_options: RunOptions | None = None,
    ):
        check_model(model)
        super().__init__(model, mesh, storage, formats, devices)
        self.run_options = replace(run_options or RunOptions(), backend=XLA_CPU if self.on_cpu else Backend())
        # one compiled step per layout and shape, for the life of this object
        self.prefill, self.read, self.logits = map(cache, (self._prefill, self._read, self._logits))
        self.grown, self.zeros = cache(self._grown), cache(self._zeros)
        self.reshard_cache, self.fill, self.insert = map(
            cache, (self._reshard_cache, self._fill, self._insert)
        )
        self.decode, self.draws, self.drafts = cache(self._decode), DrawSteps(self), DraftSteps(self)
        self.width = 1
        """Tokens of a slot that a step of decode reads at most: its last one and drafts."""
        self.traced = 0
        """How often a step was traced, and so compiled: once for each layout and shape."""

    def _prefill(self, layout: Layout) -> Callable[..., Any]:
        """(parameters, tokens [B L], lengths [B]) -> logits [B 1 V] of the next token, keys and values of the
        prompt."""

        def step(parameters, tokens, lengths):
            ops = self.ops()
            run = self.pass_at(ops, layout, _positions(tokens), reach=lengths)
            logits, kv = self.forward(run, parameters, tokens, lengths)
            return logits.value, self._windows(ops, layout, kv, lengths)

        out = self._logits_spec(layout), self.cache_specs(*kept(layout))
        return self.jit(step, (self.parameter_specs(), WHOLE, WHOLE), out, layout=layout)

    def _windows(self, ops: JaxOps, layout: Layout, kv: Cache, lengths: jax.Array) -> Cache:
        """Keys and values of whole prompts, of local layers those in their window alone."""
        held, (keys, values) = Local(lengths, parse("B")), kept(layout)

        def recent(layer: int, sharding: Sharding, part: CachePart) -> CachePart:
            t = local_part(part, sharding)
            shards = product(self.mesh.size, layout.attn_s)
            width = t.value.shape[sharding.dims.index("S")] * shards
            return plain_part(ringed(ops, t, held, self.places(layer, width), None))

        return tuple((recent(i, keys, k), recent(i, values, v)) for i, (k, v) in enumerate(kv))

    def _logits_spec(self, layout: Layout) -> PartitionSpec:
        return self.spec(parse(logits_sharding(layout)))

    def last_logits(self, layout: Layout, batch: int) -> jax.ShapeDtypeStruct:
        """The logits [B 1 V], V padded, that `prefill`, `read` and `decode` give."""
        place = self.named(self._logits_spec(layout))
        return jax.ShapeDtypeStruct((batch, 1, self.padded["V"]), jnp.float32, sharding=place)

    def _read(self, layout: Layout) -> Callable[..., Any]:
        """(parameters, cache (donated), logits [B 1 V] (donated), tokens [B L], held [B], counts [B],
        reach [B], ends) -> logits, the cache.

        A chunk of `counts` new tokens, and padding, behind the `held` ones of each sequence, whose prompt has
        `reach` tokens in all. Sequences without new tokens keep the logits they have, and all do unless some
        prompt `ends` in the chunk: then nothing need be unembedded.
        """

        def step(parameters, cache, logits, tokens, held, counts, reach, ends):
            weights, layers = self.weights(parameters)
            run = self.pass_at(self.ops(), layout, held[:, None] + _positions(tokens), held + counts, reach)
            x = transformer.embed(run, weights, Local(tokens, parse("B L")))
            x, new = transformer.blocks(run, layers, x, self._parts(cache, layout))
            first = self.ops().offset(parse(logits_sharding(layout))["B"], logits.shape[0])
            own = jax.lax.dynamic_slice_in_dim(counts, first, logits.shape[0])

            def ended():
                found = transformer.head(run, weights, x, Local(counts, parse("B"))).value
                return jnp.where(own[:, None, None] > 0, found, logits)

            return jax.lax.cond(ends, ended, lambda: logits), _plain(new)

        cache, found = self.cache_specs(*kept(layout)), self._logits_spec(layout)
        in_specs = (self.parameter_specs(), cache, found, WHOLE, WHOLE, WHOLE, WHOLE, WHOLE)
        return self.jit(step, in_specs, (found, cache), donate=(1, 2), layout=layout)

    def _logits(self, layout: Layout) -> Callable[..., Any]:
        """(parameters, tokens [B L], lengths [B]) -> float32 logits [B L V] of every token, V padded."""

        def step(parameters, tokens, lengths):
            run = self.pass_at(self.ops(), layout, _positions(tokens), reach=lengths)
            logits, _ = self.forward(run, parameters, tokens)
            return logits.value

        in_specs = (self.parameter_specs(), WHOLE, WHOLE)
        return self.jit(step, in_specs, self._logits_spec(layout), layout=layout)

    def _reshard_cache(self, source: Layout, target: Layout, capacity: int) -> Callable[..., Any]:
        """(keys and values of prompts, lengths [B]) -> cache for `capacity` tokens, split as in `target`.

        Positions are interleaved over chips, so that a cache grows by places at the end of every chip.
        """
        before, after = kept(source), kept(target)
        step = partial(self._resharded, source, target, capacity)
        return self.jit(step, (self.cache_specs(*before), WHOLE), self.cache_specs(*after))

    def _resharded(self, source: Layout, target: Layout, capacity: int, kv, lengths) -> Cache:
        ops, held = self.ops(), Local(lengths, parse("B"))

        def moved(layer: int, before: Sharding, after: Sharding, part: CachePart) -> CachePart:
            t = self._moved(ops, held, capacity, layer, before, after, part)
            places = self.places(layer, capacity, self.width)
            return plain_part(roomy(t, places // product(self.mesh.size, after["S"])))

        pairs = [
            tuple(map(partial(moved, layer), kept(source), kept(target), pair))
            for layer, pair in enumerate(kv)
        ]
        return tuple((keys, values) for keys, values in pairs)

    def _fill(self, source: Layout, target: Layout, capacity: int) -> Callable[..., Any]:
        """(keys and values of prompts, lengths [B], logits [B 1 V], rows [slots]) -> logits of slots
        [slots 1 V], cache.

        All slots from prompts in the same order; the logits of each are those of its row of the prompts.
        """

        def step(kv, lengths, logits, rows):
            own = self._of_slots(source, target, logits, rows)
            return own, self._resharded(source, target, capacity, kv, lengths)

        in_specs = (self.cache_specs(*kept(source)), WHOLE, self._logits_spec(source), WHOLE)
        return self.jit(step, in_specs, (self._logits_spec(target), self.cache_specs(*kept(target))))

    def _of_slots(self, source: Layout, target: Layout, logits, rows) -> jax.Array:
        before, after = logits_sharding(source), logits_sharding(target)
        return logits_of_slots(self.ops(), Local(logits, parse(before)), Local(rows, parse("B")), after).value

    def _insert(self, source: Layout, target: Layout, capacity: int) -> Callable[..., Any]:
        """(cache of slots (donated), keys and values of prompts, lengths [B], logits [B 1 V], source [slots],
        rows [n], slots [n]) -> logits of slots [slots 1 V], cache.

        These rows of the prompts come into these slots; a slot below zero takes nothing. The logits of each
        slot are those of the row of the prompts in `source`.
        """
        before, after = kept(source), kept(target)

        def step(cache, kv, lengths, logits, of, rows, slots):
            ops, held = self.ops(), Local(lengths, parse("B"))
            own = self._of_slots(source, target, logits, of)
            first = ops.offset(target.attn_b, cache[0][0].value.shape[0])

            def put(
                layer: int, source: Sharding, target: Sharding, old: CachePart, new: CachePart
            ) -> CachePart:
                whole = target.split("B", "")
                moved = self._moved(ops, held, capacity, layer, source, whole, new)
                return plain_part(into_slots(local_part(old, target), moved, rows, slots, first))

            return own, tuple(
                tuple(map(partial(put, layer), before, after, old, new))
                for layer, (old, new) in enumerate(zip(cache, kv, strict=True))
            )

        specs, logits = self.cache_specs(*after), self._logits_spec
        in_specs = (specs, self.cache_specs(*before), WHOLE, logits(source), WHOLE, WHOLE, WHOLE)
        return self.jit(step, in_specs, (logits(target), specs), donate=(0,))

    def _moved(
        self,
        ops: JaxOps,
        lengths: Local,
        capacity: int,
        layer: int,
        before: Sharding,
        after: Sharding,
        part: CachePart,
    ) -> Local:
        """Keys or values of a layer in another sharding, in no more places than decode's cache has."""
        places = self.places(layer, capacity, self.width)
        window = self.model.window if self.model.is_local(layer) else None
        t = ringed(ops, local_part(part, before), lengths, places, window)
        return transformer.reshard_cache(ops, t, str(after))

    def _decode(self, layout: Layout) -> Callable[..., Any]:
        """(parameters, cache (donated), tokens [B], positions [B]) -> logits [B 1 V] of the next tokens, and
        where these will stand, the cache.

        A token at a position below zero is none: nothing is written, and what comes back is of no use.
        """

        def step(parameters, cache, tokens, positions):
            after = positions + 1
            run = self.pass_at(self.ops(), layout, positions[:, None], after)
            logits, cache = self.forward(run, parameters, tokens[:, None], cache=cache)
            return logits.value, jnp.where(positions < 0, positions, after), cache

        cache = self.cache_specs(*kept(layout))
        in_specs = (self.parameter_specs(), cache, WHOLE, WHOLE)
        out = (self._logits_spec(layout), WHOLE, cache)
        return self.jit(step, in_specs, out, donate=(1,), layout=layout)

    def slots(self, layout: Layout, count: int, capacity: int) -> Cache:
        """The cache of so many slots, see `Shapes.cache`."""
        return self.cache(layout, count, capacity, self.width)

    def _grown(self, layout: Layout, capacity: int, queries: int) -> Callable[..., Any]:
        """(cache (donated) of less) -> the cache with room for `capacity` tokens, for steps of `queries`."""
        split = kept(layout)
        shards = product(self.mesh.size, layout.attn_s)

        def step(cache):
            def wider(layer: int, sharding: Sharding, part: CachePart) -> CachePart:
                local = self.places(layer, capacity, queries) // shards
                return plain_part(roomy(local_part(part, sharding), local))

            return tuple(tuple(map(partial(wider, layer), split, pair)) for layer, pair in enumerate(cache))

        specs = self.cache_specs(*split)
        return self.jit(step, (specs,), specs)

    def empty(self, shapes: Any) -> Any:
        """Arrays of zeros, of all these shapes and shardings."""
        if not self.on_cpu:
            return self.zeros(shapes)()

        def zeros_of(shape: jax.ShapeDtypeStruct) -> jax.Array:  # a CPU device needs no program for it
            def part(index) -> np.ndarray:
                sizes = [len(range(*one.indices(n))) for one, n in zip(index, shape.shape, strict=True)]
                return np.zeros(sizes, shape.dtype)

            return jax.make_array_from_callback(shape.shape, shape.sharding, part)

        return jax.tree.map(zeros_of, shapes)

    def _zeros(self, shapes: Any) -> Callable[[], Any]:
        """() -> arrays of zeros."""
        zeros = partial(jax.tree.map, lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
        return jax.jit(zeros, out_shardings=jax.tree.map(lambda shape: shape.sharding, shapes))

    # -- the program on a device's arrays -----------------------------------------------------------------

    def ops(self) -> JaxOps:
        return JaxOps(self.mesh.size, self.formats, self.model, self.on_cpu, self.run_options)

    @property
    def on_cpu(self) -> bool:
        return self.device_mesh.devices.flat[0].platform == "cpu"

    def pass_at(
        self,
        ops: JaxOps,
        layout: Layout,
        positions: jax.Array,
        lengths: jax.Array | None = None,
        reach: jax.Array | None = None,
    ) -> Pass[Local]:
        held, whole = (None if each is None else Local(each, parse("B")) for each in (lengths, reach))
        return Pass(ops, self.model, layout, Local(positions, parse("B L")), held, whole)

    def forward(
        self,
        run: Pass[Local],
        parameters: Mapping[str, jax.Array],
        tokens: jax.Array,
        counts: jax.Array | None = None,
        cache: Cache | None = None,
    ) -> tuple[Local, Cache]:
        weights, layers = self.weights(parameters)
        own = None if counts is None else Local(counts, parse("B"))
        parts = None if cache is None else self._parts(cache, run.layout)
        logits, new = transformer.forward(run, weights, layers, Local(tokens, parse("B L")), own, parts)
        return logits, _plain(new)

    def weights(self, parameters: Mapping[str, jax.Array]) -> tuple[dict[str, Local], list[dict[str, Local]]]:
        """Parameters outside the blocks and those of each block, the int8 ones with their scales."""
        found = {}
        for name, value in parameters.items():
            if name.removesuffix("_scale") in parameters and name.endswith("_scale"):
                continue
            scale = parameters.get(scale_name(name))
            held = None if scale is None else Local(scale, self.shardings[scale_name(name)])
            found[name] = Local(value, self.shardings[name], scale=held)
        layers: list[dict[str, Local]] = [{} for _ in range(self.model.layers)]
        for name in [name for name in found if name.startswith("layers.")]:
            _, index, own = name.split(".")
            layers[int(index)][own] = found.pop(name)
        return found, layers

    def _parts(self, cache: Cache, layout: Layout) -> list[tuple[Local, Local]]:
        keys, values = kept(layout)
        return [(local_part(pair[0], keys), local_part(pair[1], values)) for pair in cache]

    def jit(
        self,
        step: Callable[..., Any],
        in_specs,
        out_specs,
        donate: tuple[int, ...] = (),
        layout: Layout | None = None,
    ):
        def counted(*args):
            self.traced += 1
            return step(*args)

        # check_vma cannot know that a gathered value is the same everywhere; tests compare the replicas
        mapped = jax.shard_map(
            counted, mesh=self.device_mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
        options = cpu.SPARING if self.on_cpu and layout is not None and self._by_layer(layout) else None
        return jax.jit(mapped, donate_argnums=donate, compiler_options=options)

    def _by_layer(self, layout: Layout) -> bool:
        """Whether a step must be kept from making for all layers at once what it needs for one: gathered
        weights, or floats of bfloat16 keys and values."""
        stored = self.storage.e + self.storage.f
        gathers = any(a in stored and self.mesh.size[a] > 1 for a in layout.tokens_b + layout.tokens_l)
        return gathers or self.formats.kv == "bf16"


def _plain(cache: Sequence[tuple[Local, Local]]) -> Cache:
    return tuple((plain_part(keys), plain_part(values)) for keys, values in cache)


def _positions(tokens: jax.Array) -> jax.Array:
    return jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
