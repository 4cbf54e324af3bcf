"""The operations of attention on one device's arrays: positions, the cache, the softmax.

A part of `JaxOps`. Position p lies in place p mod S of a cache, so that a local layer's cache is a ring of
its window; places are interleaved over devices. Knows nothing about blocks or layouts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partita.engine import cpu
from partita.engine.local import Local, Places, aligned
from partita.program.ops import Seen
from partita.program.options import RunOptions
from partita.program.positions import by_length, frequencies, magnitude
from partita.sharding.interleave import INTERLEAVED
from partita.sharding.padding import product
from partita.sharding.spec import Sharding
from partita.specs.model import Model

_MASKED = -1e30
"""A masked score: finite, so that what sees nothing (padding, a free slot) stays a number."""


class AttentionOps(Places):
    """Those of `program.ops.Ops` that only attention needs."""

    activations: Any
    kv: Any
    on_cpu: bool
    run_options: RunOptions
    waves: dict[tuple[int, bool], tuple[jax.Array, jax.Array]]
    """Sines and cosines that queries and keys are turned by, kept for the positions of one trace."""

    def take(self, t: Local, dim: str, index: int) -> Local:
        value = jax.lax.index_in_dim(t.value, index, t.sharding.dims.index(dim), keepdims=False)
        return Local(value, t.sharding.without(dim), t.settles)

    def rotate(
        self, x: Local, positions: Local, model: Model, local: bool, reach: Local | None = None
    ) -> Local:
        waves = self._waves(positions.value, model, local, reach)
        half = waves.shape[-1]
        sin, cos = waves.reshape(2, *positions.value.shape, *[1] * (x.value.ndim - 3), half)
        turned, rest = x.value[..., : 2 * half].astype(jnp.float32), x.value[..., 2 * half :]
        if model.rotary_pairs == "interleaved":
            first, second = turned[..., 0::2], turned[..., 1::2]
        else:
            first, second = turned[..., :half], turned[..., half:]
        parts = [first * cos - second * sin, second * cos + first * sin]
        if model.rotary_pairs == "interleaved":
            turned = jnp.stack(parts, axis=-1).reshape(turned.shape)
        else:
            turned = jnp.concatenate(parts, axis=-1)
        turned = turned.astype(x.value.dtype)
        return replace(x, value=jnp.concatenate([turned, rest], axis=-1) if rest.shape[-1] else turned)

    def _waves(self, positions: jax.Array, model: Model, local: bool, reach: Local | None) -> jax.Array:
        """Sines and cosines [2 B L D/2] of the rotary angles at positions [B L], found once for all layers.

        Where the length of a sequence decides, it is that of its prompt while that is read, and then that up
        to the token itself: what is cached stays as it was turned when it was read.

        A loop finds them: otherwise XLA computes them again for every head of every layer, which took 7 % of
        a prefill.
        """
        key = id(positions), local
        if key not in self.waves:
            inverse, factor = frequencies(model, local), magnitude(model, local)
            if (stretched := by_length(model, local)) is not None:
                lengths = positions + 1
                if reach is not None:
                    lengths = jnp.maximum(lengths, reach.value[:, None])
                inverse = stretched(lengths, jnp)
            angles = positions[..., None].astype(jnp.float32) * inverse

            def put(number: jax.Array, found: jax.Array) -> jax.Array:
                return found.at[number].set(jnp.where(number == 0, jnp.sin(angles), jnp.cos(angles)) * factor)

            found = jax.lax.fori_loop(0, 2, put, jnp.zeros((2, *angles.shape), jnp.float32))
            self.waves[key] = found, positions  # kept, so that no other array gets its id
        return self.waves[key][0]

    # -- the softmax ------------------------------------------------------------------------------------

    def softmax(self, scores: Local, seen: Seen[Local], sums: Local | None = None) -> Local:
        value = self._masked(scores, seen)
        if sums is None:
            value = self._power(value - jnp.max(value, axis=-1, keepdims=True))
            total = jnp.sum(value, axis=-1)
        else:
            largest = jnp.max(sums.value[..., 0], axis=-1, keepdims=True)
            parts = sums.value[..., 1] * self._power(sums.value[..., 0] - largest)
            value, total = self._power(value - largest), jnp.sum(parts, axis=-1)
        # what is mixed by them is divided by their sum: it is smaller than they are
        times = Local((1 / total).transpose(0, 2, 1, 3), scores.sharding.only("BLKG"))
        return replace(scores, value=value.astype(self.activations), times=times)

    def shard_sums(self, scores: Local, seen: Seen[Local]) -> Local:
        value = self._masked(scores, seen)
        largest = jnp.max(value, axis=-1, keepdims=True)
        total = jnp.sum(self._power(value - largest), axis=-1, keepdims=True)
        sharding = Sharding(scores.sharding.dims + "M", (*scores.sharding.axes, ""))
        return Local(jnp.stack([largest, total], axis=-1), sharding)

    def _masked(self, scores: Local, seen: Seen[Local]) -> jax.Array:
        last = math.log2(math.e) if self.run_options.base2_softmax else 1.0
        if seen.softcap is None:
            value = scores.value * (seen.scale * last)
        else:
            value = capped(scores.value * (seen.scale / seen.softcap)) * (seen.softcap * last)
        distance, visible = self._distances(scores, seen)
        if seen.slopes is not None:
            slopes = aligned(self._own_heads(seen.slopes * last, scores), "KG", scores.sharding.dims)
            value = value - slopes * aligned(distance.astype(jnp.float32), "BLS", scores.sharding.dims)
        value = jnp.where(value > _MASKED, value, jnp.nan)  # it would lose to what is masked
        return jnp.where(aligned(visible, "BLS", scores.sharding.dims), value, _MASKED)

    def _own_heads(self, numbers: np.ndarray, scores: Local) -> jax.Array:
        """Of numbers [K G] of all heads those of this device's, whose padding has any of them."""
        own = []
        for dim, count in zip("KG", numbers.shape, strict=True):
            here = scores.value.shape[scores.sharding.dims.index(dim)]
            own.append(jnp.clip(self.offset(scores.sharding[dim], here) + jnp.arange(here), 0, count - 1))
        return jnp.asarray(numbers)[own[0][:, None], own[1][None]]

    def _power(self, value: jax.Array) -> jax.Array:
        """Exponentials of what `_masked` gives: e^x is 2^(x log2 e), and that factor is in the scale."""
        return jnp.exp2(value) if self.run_options.base2_softmax else jnp.exp(value)

    def _distances(self, scores: Local, seen: Seen[Local]) -> tuple[jax.Array, jax.Array]:
        """How far before a query the token in a place of the cache is, and whether the query sees it: both
        [B L S]."""
        places, count = self.places(scores.sharding[INTERLEAVED], scores.value.shape[-1])
        queries = seen.positions.value[:, :, None]
        if seen.lengths is None:
            held = places[None, None]
            distance = queries - held
            visible = distance >= 0
        else:
            held = positions_in(places, seen.lengths.value, count)[:, None]
            distance = queries - held
            visible = (held >= 0) & (distance >= 0)
        return distance, visible if seen.window is None else visible & (distance < seen.window)

    def places(self, axes: str, local: int) -> tuple[jax.Array, int]:
        """This device's places of a cache of which it has `local`, and how many there are in all."""
        places, split = jnp.arange(local), self._split(axes)
        if not split:
            return places, local
        shards = product(self.sizes, "".join(split))
        return places * shards + self._number(split), local * shards

    # -- the cache --------------------------------------------------------------------------------------

    def as_cache(self, new: Local, dims: str) -> Local:
        return self._arranged(self._stored(new), new.sharding.dims.replace("L", "S"), dims)

    def _arranged(self, t: Local, dims: str, target: str) -> Local:
        """A cache whose value has these dims with those of `target`, and its scale likewise."""
        scale, kept = t.scale, target.replace("D", "")
        if scale is not None:
            scale = self._arranged(scale, dims.replace("D", ""), kept)
        sharding = Sharding(dims, t.sharding.axes).only(target)
        return Local(t.value.transpose([dims.index(d) for d in target]), sharding, scale=scale)

    def _stored(self, new: Local) -> Local:
        """Keys or values [... D] in the cache's format."""
        if self.kv != jnp.int8:
            return Local(new.value.astype(self.kv), new.sharding)
        rows, scale = _quantised(new.value)
        return Local(rows, new.sharding, scale=Local(scale, new.sharding.without("D")))

    def write(self, cache: Local, new: Local, positions: Local, lengths: Local) -> Local:
        dims, split = cache.sharding.dims, self._split(cache.sharding[INTERLEAVED])
        local = cache.value.shape[dims.index(INTERLEAVED)]
        kept = (positions.value >= 0) & (positions.value < lengths.value[:, None])
        shards = product(self.sizes, "".join(split))
        places = positions.value % (local * shards)
        if split:
            places, number = jnp.divmod(places, shards)
            kept &= number == self._number(split)
        # padding, or another device's, has no place: one of its own behind all, for none is written twice
        count = places.shape[1]
        places = jnp.where(kept, places, local + jnp.arange(count))
        stored = self._stored(new)
        scale = cache.scale
        if scale is not None and stored.scale is not None:
            scale = replace(scale, value=_put(scale.value, "BKS", places, stored.scale.value))

        def put(cache: jax.Array, new: jax.Array) -> jax.Array:
            return _put(cache, dims, places, new)

        written = (
            cpu.scattered(put, cache.value, stored.value) if self.on_cpu else put(cache.value, stored.value)
        )
        return replace(cache, value=written, scale=scale)


def capped(value: jax.Array) -> jax.Array:
    """The hyperbolic tangent, which makes a finite number of infinity: here that is none."""
    return jnp.where(jnp.isfinite(value), jnp.tanh(value), jnp.nan)


def _quantised(value: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[... D] -> int8 [... D] and its float32 scale [...]: the largest magnitude of a row is 127."""
    value = value.astype(jnp.float32)
    largest = jnp.max(jnp.abs(value), axis=-1)
    scale = jnp.where(largest > 0, largest / 127, 1.0)
    return jnp.round(value / scale[..., None]).astype(jnp.int8), scale


def _put(cache: jax.Array, dims: str, places: jax.Array, new: jax.Array) -> jax.Array:
    """A cache of these dims with new [B L K] or [B L K D] at `places` [B L].

    With an index for every dim up to S XLA writes in place; a slice between two of them makes it copy, and so
    does a single row.
    """
    index = {"B": jnp.arange(cache.shape[0])[:, None, None], "S": places[..., None]}
    index["K"] = jnp.arange(cache.shape[1])[None, None]
    if "D" in dims and (dims == "BKDS" or new.shape[:3] == (1, 1, 1)):
        index = {dim: each[..., None] for dim, each in index.items()}
        index["D"] = jnp.arange(new.shape[3])[None, None, None]
    at = tuple(index[dim] for dim in dims if dim in index)
    return cache.at[at].set(new, mode="drop", unique_indices=True)


def positions_in(places: jax.Array, lengths: jax.Array, count: int) -> jax.Array:
    """Which position each of `places` [S] holds, of `count` in all, after `lengths` [B] tokens: [B S]; below
    zero where there is none yet."""
    last = lengths[:, None] - 1
    return last - (last - places) % count
