"""Interpreter 2: the program's operations on one device's arrays, inside `jax.shard_map`.

What each operation means is in `partita.program.ops`. Matmuls accumulate in float32, and partial sums
travel in `formats.reduce` (float32 unless told otherwise). Axes of size 1 start no collective.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from partita.engine.moves import move
from partita.sharding.deal import DEALT
from partita.sharding.layout import product
from partita.sharding.reshard import reshard
from partita.sharding.spec import Sharding, contract, parse
from partita.specs.formats import Formats
from partita.specs.model import Model

DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "int8": jnp.int8}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Local:
    """One device's part of a tensor; `settles` is the dtype it takes once fully summed."""

    value: jax.Array
    sharding: Sharding = field(metadata={"static": True})
    settles: Any = field(metadata={"static": True}, default=None)
    index: jax.Array | None = None
    """In the cache of all layers: which layer this is. The value then has a leading axis of layers."""


class JaxOps:
    """`program.ops.Ops` over `Local`, for a mesh whose axes have `sizes` devices."""

    def __init__(self, sizes: Mapping[str, int], formats: Formats, d_model: int):
        self.sizes, self.d_model = sizes, d_model
        self.activations, self.kv = DTYPES[formats.activations], DTYPES[formats.kv]
        self.reduce = DTYPES[formats.reduce]
        self.precision = jax.lax.Precision.HIGHEST if formats.activations == "f32" else None

    def scope(self, name: str) -> AbstractContextManager[object]:
        return jax.named_scope(name)

    # -- resharding -------------------------------------------------------------------------------------

    def to(self, t: Local, sharding: str) -> Local:
        for step in reshard(t.sharding, parse(sharding)):
            value = move(t.value, step, self.sizes)
            if t.sharding.partial and not step.after.partial and t.settles is not None:
                value = value.astype(t.settles)
            t = replace(t, value=value, sharding=step.after)
        return t

    # -- arithmetic -------------------------------------------------------------------------------------

    def einsum(self, text: str, a: Local, b: Local, *, causal: bool = False, precise: bool = False) -> Local:
        sharding = contract(text, a.sharding, b.sharding)
        settles = jnp.float32 if precise else self.activations
        value = jnp.einsum(
            text,
            a.value.astype(self.activations),
            b.value.astype(self.activations),
            precision=self.precision,
            preferred_element_type=jnp.float32,
        )
        travels = jnp.float32 if precise else self.reduce
        return Local(value.astype(travels if sharding.partial else settles), sharding, settles)

    def add(self, a: Local, b: Local) -> Local:
        if a.sharding != b.sharding:
            raise ValueError(f"cannot add {a.sharding} and {b.sharding}")
        return replace(a, value=a.value + b.value)

    def moments(self, x: Local, norm: str) -> Local:
        value = x.value.astype(jnp.float32)
        sums = [jnp.sum(value * value, axis=-1)]
        if norm == "layernorm":
            sums.append(jnp.sum(value, axis=-1))
        sharding = Sharding("BLM", (x.sharding["B"], x.sharding["L"], ""), x.sharding["E"])
        return Local(jnp.stack(sums, axis=-1), sharding, jnp.float32)

    def normalise(self, x: Local, moments: Local, parameters: Local | None, model: Model) -> Local:
        means = moments.value / self.d_model
        value, variance = x.value.astype(jnp.float32), means[..., :1]
        if model.norm == "layernorm":
            value, variance = value - means[..., 1:], variance - jnp.square(means[..., 1:])
        value = value * jax.lax.rsqrt(variance + model.norm_epsilon)
        if parameters is not None:
            value = value * parameters.value[0]
            if model.norm == "layernorm":
                value = value + parameters.value[1]
        return replace(x, value=value.astype(self.activations))

    def gate(self, h: Local, feed_forward: str) -> Local:
        value = h.value.astype(jnp.float32)
        if feed_forward == "swiglu":
            value = jax.nn.silu(value[:, :, 0]) * value[:, :, 1]
        else:
            value = jax.nn.gelu(value[:, :, 0], approximate=True)
        return Local(value.astype(self.activations), h.sharding.without("M"), self.activations)

    def rotate(self, x: Local, positions: Local, base: float) -> Local:
        half = x.value.shape[-1] // 2
        angles = positions.value[..., None] * base ** (-jnp.arange(half, dtype=jnp.float32) / half)
        angles = angles.reshape(*angles.shape[:2], *[1] * (x.value.ndim - 3), half)
        first, second = x.value[..., :half].astype(jnp.float32), x.value[..., half:].astype(jnp.float32)
        sin, cos = jnp.sin(angles), jnp.cos(angles)
        value = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
        return replace(x, value=value.astype(x.value.dtype))

    def rotate_keys(self, kv: Local, positions: Local, base: float) -> Local:
        keys = self.rotate(self.take(kv, "M", 0), positions, base)
        return replace(kv, value=jnp.stack([keys.value, kv.value[1]]))

    def softmax(self, scores: Local, positions: Local, scale: float, sums: Local | None = None) -> Local:
        value = self._masked(scores, positions, scale)
        if sums is None:
            value = jax.nn.softmax(value, axis=-1)
        else:  # every query sees position 0, so that the largest of all is finite
            largest = jnp.max(sums.value[..., 0], axis=-1, keepdims=True)
            parts = sums.value[..., 1] * jnp.exp(sums.value[..., 0] - largest)
            value = jnp.exp(value - largest) / jnp.sum(parts, axis=-1, keepdims=True)
        return replace(scores, value=value.astype(self.activations))

    def shard_sums(self, scores: Local, positions: Local, scale: float) -> Local:
        value = self._masked(scores, positions, scale)
        largest = jnp.max(value, axis=-1, keepdims=True)
        above = jnp.exp(value - jnp.where(largest > -jnp.inf, largest, 0))
        both = jnp.stack([largest, jnp.sum(above, axis=-1, keepdims=True)], axis=-1)
        sharding = Sharding(scores.sharding.dims + "M", (*scores.sharding.axes, ""))
        return Local(both, sharding)

    def _masked(self, scores: Local, positions: Local, scale: float) -> jax.Array:
        """Scaled scores, minus infinity where the position comes after the query's own."""
        cached = jnp.arange(scores.value.shape[-1])
        if axes := self._split(scores.sharding[DEALT]):
            cached = cached * product(self.sizes, "".join(axes)) + self._turn(axes)
        visible = cached <= positions.value[:, :, None, None, None]
        return jnp.where(visible, scores.value * scale, -jnp.inf)

    # -- cache ------------------------------------------------------------------------------------------

    def take(self, t: Local, dim: str, index: int) -> Local:
        axis = t.sharding.dims.index(dim)
        if t.index is None:
            value = jax.lax.index_in_dim(t.value, index, axis, keepdims=False)
        else:  # dim is the first: one slice of the cache of all layers, which is never copied whole
            start = (t.index, index, *[0] * (t.value.ndim - 2))
            value = jax.lax.dynamic_slice(t.value, start, (1, 1, *t.value.shape[2:]))[0, 0]
        return Local(value, t.sharding.without(dim), t.settles)

    def as_cache(self, kv: Local) -> Local:
        return Local(kv.value.astype(self.kv), kv.sharding.rename("L", "S"))

    def write(self, cache: Local, kv: Local, positions: Local) -> Local:
        rows = jnp.arange(positions.value.shape[0])[:, None]
        new = jnp.moveaxis(kv.value, 0, 2).astype(self.kv)  # [B L M K D], as the indices arrange it
        places = positions.value
        if axes := self._split(cache.sharding[DEALT]):
            places, turn = jnp.divmod(places, product(self.sizes, "".join(axes)))
            places = jnp.where(turn == self._turn(axes), places, cache.value.shape[3])  # others': no place
        value = cache.value.at[cache.index, :, rows, places].set(new, mode="drop")
        return replace(cache, value=value)

    def layers(
        self,
        body: Callable[[Local, Mapping[str, Local], Local | None], tuple[Local, Local]],
        x: Local,
        weights: Mapping[str, Local],
        cache: Local | None,
    ) -> tuple[Local, Local]:
        if cache is None:
            return jax.lax.scan(lambda x, w: body(x, w, None), x, weights)
        count = cache.value.shape[0]

        def run(carry, layer):
            (x, cache), (w, index) = carry, layer
            x, cache = body(x, w, replace(cache, index=index))
            return (x, replace(cache, index=None)), None

        (x, cache), _ = jax.lax.scan(run, (x, cache), (weights, jnp.arange(count)))
        return x, cache

    # -- where this device's part lies ------------------------------------------------------------------

    def _split(self, axes: str) -> tuple[str, ...]:
        """Those of `axes` that have more than one device."""
        return tuple(a for a in axes if self.sizes[a] > 1)

    def _turn(self, axes: tuple[str, ...]) -> jax.Array:
        """This device's turn when the positions are dealt over `axes`: the first counts first."""
        return jax.lax.axis_index(axes[::-1])

    def _offset(self, axes: str, local: int) -> jax.Array | int:
        """Where this device's part of a dim of `local` entries starts, the dim being split over `axes`."""
        split = self._split(axes)
        return jax.lax.axis_index(split) * local if split else 0

    # -- vocabulary -------------------------------------------------------------------------------------

    def lookup(self, table: Local, tokens: Local) -> Local:
        rows = table.value.shape[0]
        wanted = tokens.value - self._offset(table.sharding["V"], rows)
        here = (wanted >= 0) & (wanted < rows)
        found = jnp.where(here[..., None], table.value[jnp.clip(wanted, 0, rows - 1)], 0)
        sharding = Sharding(
            "BLE", (tokens.sharding["B"], tokens.sharding["L"], table.sharding["E"]), table.sharding["V"]
        )
        return Local(found.astype(self.activations), sharding, self.activations)

    def last(self, x: Local, lengths: Local) -> Local:
        count = x.value.shape[1]
        wanted = lengths.value - 1 - self._offset(x.sharding["L"], count)
        here = (wanted >= 0) & (wanted < count)
        found = jnp.take_along_axis(x.value, jnp.clip(wanted, 0, count - 1)[:, None, None], axis=1)
        sharding = x.sharding.split("L", "").summing(x.sharding["L"])
        return Local(jnp.where(here[:, None, None], found, 0), sharding, self.activations)

    def best(self, logits: Local, vocabulary: int) -> Local:
        values = logits.value[:, 0]
        ids = self._offset(logits.sharding["V"], values.shape[1]) + jnp.arange(values.shape[1])
        values = jnp.where(ids < vocabulary, values, -jnp.inf)
        best = jnp.argmax(values, axis=-1)
        pair = [jnp.max(values, axis=-1), ids[best].astype(jnp.float32)]  # exact below 2^24 tokens
        sharding = Sharding("BVM", (logits.sharding["B"], logits.sharding["V"], ""))
        return Local(jnp.stack(pair, axis=-1)[:, None], sharding)

    def pick(self, best: Local) -> Local:
        shard = jnp.argmax(best.value[..., 0], axis=1)[:, None]
        ids = jnp.take_along_axis(best.value[..., 1], shard, axis=1)[:, 0]
        return self.to(Local(ids.astype(jnp.int32), Sharding("B", (best.sharding["B"],))), "B")
