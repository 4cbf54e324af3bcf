"""Drawing tokens on a device's logits, and the randomness it depends on.

Part of `JaxOps`, see `program.sampling.SamplingOps`. Knows nothing about slots, batches or requests.

The determinism contract: every token of the vocabulary gets noise of its own, keyed by (seed of the request,
number of the sample, position in the sequence, token) and by nothing else. So neither the other requests of a
batch, nor the slot, nor how the prompt was cut into chunks, nor the mesh and its layouts change a draw: from
the same logits the same token is drawn. Logits themselves differ by layout in their last bits, sums being in
another order, and a token changes where two of the best scores (logit over temperature, plus noise), or a
logit and the floor of a cut, are nearer to each other than that: by some 1e-5 in float32, so that about one
token in 1e5 is another one, and by some 1e-2 in bfloat16, about one in 100.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from partita.engine.local import Local, Places
from partita.program.ops import NO_TOKEN
from partita.program.sampling import BITS, CANDIDATES, ROUNDS, Turn, Weight
from partita.sharding.spec import Sharding
from partita.specs.sampling import GREEDY_BELOW

Settings = Mapping[str, Local]


class Draws(Places):
    """`program.sampling.SamplingOps` over `Local`."""

    def rows(self, logits: Local, rows: Local) -> Local:
        return replace(logits, value=logits.value[rows.value])

    def penalise(self, logits: Local, history: Settings, settings: Settings) -> Local:
        value = logits.value + history["bias"].value[:, None]
        written = history["output"].value[:, None]
        known = (history["prompt"].value[:, None] > 0) | (written > 0)
        repeated = _column(settings["repetition_penalty"])
        value = jnp.where(known, jnp.where(value > 0, value / repeated, value * repeated), value)
        value = value - _column(settings["frequency_penalty"]) * written
        return Local(value - _column(settings["presence_penalty"]) * (written > 0), logits.sharding)

    def count(self, output: Local, tokens: Local) -> Local:
        rows, here = output.value.shape
        places = tokens.value - self.offset(output.sharding["V"], here)
        places = jnp.where((places >= 0) & (places < here), places, here)  # others': no place
        value = output.value.at[jnp.arange(rows), places].add(1, mode="drop")
        return Local(value, output.sharding)

    def heat(self, logits: Local, vocabulary: int, settings: Settings) -> Local:
        temperature = _column(settings["temperature"])
        value = logits.value / jnp.where(temperature < GREEDY_BELOW, 1, temperature)
        return Local(jnp.where(self._tokens(logits) < vocabulary, value, -jnp.inf), logits.sharding)

    def candidates(self, logits: Local, count: int) -> Local:
        values = logits.value[:, 0]
        best, _ = jax.lax.top_k(values, min(count, values.shape[1]))
        return _of_shard(logits, best)

    def rank(self, candidates: Local, count: int) -> Local:
        values = candidates.value.reshape(candidates.value.shape[0], -1)
        best, _ = jax.lax.top_k(values, min(count, values.shape[1]))
        return Local(best, Sharding("BM", (candidates.sharding["B"], "")))

    def floor(self, ranked: Local, settings: Settings) -> Local:
        best, k = ranked.value, settings["top_k"].value[:, None]
        largest = jnp.max(best, axis=1, keepdims=True)
        least = largest + jnp.log(settings["min_p"].value[:, None])
        told = (k > 0) & (k <= CANDIDATES)  # whether the candidates hold all that top-k keeps
        place = jnp.clip(k, 1, best.shape[1]) - 1
        least = jnp.maximum(least, jnp.where(told, jnp.take_along_axis(best, place, axis=1), -jnp.inf))
        shares = jnp.where((jnp.arange(best.shape[1]) <= place) & (best >= least), jnp.exp(best - largest), 0)
        wanted = settings["top_p"].value[:, None]
        before = jnp.cumsum(shares, axis=1) - shares
        kept = (shares > 0) & (before < wanted * jnp.sum(shares, axis=1, keepdims=True))
        nucleus = jnp.min(jnp.where(kept, best, jnp.inf), axis=1, keepdims=True)
        found = jnp.where(told & (wanted < 1), jnp.maximum(least, nucleus), least)
        return Local(found[:, 0], Sharding("B", (ranked.sharding["B"],)))

    # -- the search for a floor ---------------------------------------------------------------------------

    def weights(self, logits: Local, ranked: Local, floor: Local, by: Weight) -> Local:
        value = logits.value
        if by == "count":
            return Local((value > -jnp.inf).astype(jnp.float32), logits.sharding)
        shares = jnp.exp(value - jnp.max(ranked.value, axis=1)[:, None, None])
        return Local(jnp.where(value >= floor.value[:, None, None], shares, 0), logits.sharding)

    def ordered(self, logits: Local) -> Local:
        """A float's bits, those of negative numbers turned round."""
        bits = jax.lax.bitcast_convert_type(logits.value, jnp.uint32)
        return Local(jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31)), logits.sharding)

    def lowest(self, ordered: Local) -> Local:
        return Local(jnp.zeros(ordered.value.shape[0], jnp.uint32), Sharding("B", (ordered.sharding["B"],)))

    def above(self, ordered: Local, weights: Local, edges: Local, turn: Turn) -> Local:
        reached = ordered.value >= (edges.value[:, None] + _steps(turn))[..., None]  # [B, edges, V]
        value = jnp.sum(jnp.where(reached, weights.value, 0), axis=-1)
        return Local(value, Sharding("BM", (ordered.sharding["B"], ""), ordered.sharding["V"]))

    def narrow(
        self, edges: Local, above: Local, total: Local, settings: Settings, by: Weight, turn: Turn
    ) -> Local:
        if by == "count":
            wanted = settings["top_k"].value.astype(jnp.float32)
        else:
            wanted = settings["top_p"].value * total.value[:, 0]
        enough = jnp.sum(above.value >= wanted[:, None], axis=1)
        step = jnp.maximum(enough - 1, 0)  # the first edge had enough, whatever a sum says
        return Local(edges.value + _steps(turn)[step], edges.sharding)

    def turns(self, turn: Callable[[Local, Turn], Local], edges: Local, first: int) -> Local:
        def run(value: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
            return turn(Local(value, edges.sharding), number).value, None

        value, _ = jax.lax.scan(run, edges.value, jnp.arange(first, ROUNDS, dtype=jnp.uint32))
        return Local(value, edges.sharding)

    def raise_floor(self, floor: Local, edges: Local, settings: Settings, by: Weight) -> Local:
        k = settings["top_k"].value
        if by == "count":
            decides = k > CANDIDATES
        else:
            decides = (settings["top_p"].value < 1) & ((k == 0) | (k > CANDIDATES))
        found = _unordered(edges.value)
        return Local(jnp.where(decides & (found > floor.value), found, floor.value), floor.sharding)

    # -- the draw -----------------------------------------------------------------------------------------

    def draw(
        self,
        logits: Local,
        floor: Local,
        settings: Settings,
        positions: Local,
        own: Local,
    ) -> Local:
        values, tokens = logits.value[:, 0], self._tokens(logits)
        noise = gumbel(settings["seed"].value, settings["sample"].value, positions.value, tokens)
        warm = settings["temperature"].value[:, None] >= GREEDY_BELOW
        scores = jnp.where(values >= floor.value[:, None], values + jnp.where(warm, noise, 0), -jnp.inf)
        best, place = jax.lax.top_k(scores, 1)  # of equals the first
        finite = jnp.all(jnp.isfinite(own.value[:, 0]), axis=-1, keepdims=True)
        best = jnp.where(finite, best, jnp.inf)
        logit = jnp.take_along_axis(own.value[:, 0], place, axis=1)
        return _of_shard(logits, jnp.concatenate([best, tokens[place].astype(jnp.float32), logit], axis=1))

    def winner(self, drawn: Local) -> tuple[Local, Local]:
        shard = jnp.argmax(drawn.value[..., 0], axis=1)[:, None, None]
        best = jnp.take_along_axis(drawn.value, shard, axis=1)[:, 0]
        sharding = Sharding("B", (drawn.sharding["B"],))
        tokens = jnp.where(jnp.isfinite(best[:, 0]), best[:, 1].astype(jnp.int32), NO_TOKEN)
        return Local(tokens, sharding), Local(best[:, 2], sharding)

    def alternatives(self, logits: Local, vocabulary: int, count: int) -> Local:
        tokens = self._tokens(logits)
        values = jnp.where(tokens < vocabulary, logits.value[:, 0], -jnp.inf)
        best, places = jax.lax.top_k(values, min(count, values.shape[1]))
        largest = jnp.max(values, axis=1, keepdims=True)  # `best[:, :1]` makes XLA sort all of them on CPU
        above = jnp.exp(values - jnp.where(largest > -jnp.inf, largest, 0))
        parts = [best, tokens[places].astype(jnp.float32), jnp.sum(above, axis=1, keepdims=True)]
        return _of_shard(logits, jnp.concatenate(parts, axis=1))

    def logprobs(self, alternatives: Local, own: Local, count: int) -> Local:
        of_shards = alternatives.value
        rows, _, numbers = of_shards.shape
        each = numbers // 2
        values, tokens = (
            of_shards[..., :each].reshape(rows, -1),
            of_shards[..., each : 2 * each].reshape(rows, -1),
        )
        whole = jax.nn.logsumexp(of_shards[..., 0], b=of_shards[..., -1], axis=1, keepdims=True)
        best, places = jax.lax.top_k(values, min(count, values.shape[1]))
        likeliest = jnp.take_along_axis(tokens, places, axis=1)
        missing = count - best.shape[1]  # of a vocabulary that has no more
        best = jnp.pad(best, [(0, 0), (0, missing)], constant_values=-jnp.inf)
        likeliest = jnp.pad(likeliest, [(0, 0), (0, missing)], constant_values=-1)
        found = [own.value[:, None] - whole, best - whole, likeliest]
        return Local(jnp.concatenate(found, axis=1), Sharding("BM", (own.sharding["B"], "")))

    def _tokens(self, logits: Local) -> jax.Array:
        """Which tokens this device has the logits of."""
        here = logits.value.shape[-1]
        return self.offset(logits.sharding["V"], here) + jnp.arange(here)


def gumbel(seeds: ArrayLike, samples: ArrayLike, positions: ArrayLike, tokens: jax.Array) -> jax.Array:
    """Gumbel noise [B, V] of `tokens` [V], for seeds uint32 [B 2], samples [B] and positions [B].

    Each number depends on its own seed, sample, position and token alone: Threefry (Salmon et al. 2011).
    """

    def row(seed: jax.Array, sample: jax.Array, position: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        key = jax.random.fold_in(jax.random.fold_in(key, sample), position)
        return jax.vmap(lambda token: jax.random.key_data(jax.random.fold_in(key, token))[0])(tokens)

    bits = jax.vmap(row)(*map(jnp.asarray, (seeds, samples, positions)))
    # an exponential is -log(1 - share); the smallest, which win, keep all their digits in the series
    share = jnp.minimum((bits.astype(jnp.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    series = share * (1 + share * (1 / 2 + share * (1 / 3 + share / 4)))
    return -jnp.log(jnp.where(share < 1 / 64, series, -jnp.log(1 - share)))


def _column(setting: Local) -> jax.Array:
    """A setting [B] as [B 1 1]."""
    return setting.value[:, None, None]


def _of_shard(logits: Local, numbers: jax.Array) -> Local:
    """Numbers [B M] of this shard of the vocabulary as [B V M]."""
    return Local(numbers[:, None], Sharding("BVM", (logits.sharding["B"], logits.sharding["V"], "")))


def _steps(turn: Turn) -> jax.Array:
    """Uint32 [2^BITS]: how far the edges of a round are above the first."""
    return jnp.arange(2**BITS, dtype=jnp.uint32) << jnp.uint32(32 - BITS * (turn + 1))


def _unordered(ordered: jax.Array) -> jax.Array:
    """The inverse of `Draws.ordered`; NaN where that is no number."""
    bits = jnp.where(ordered >> 31 == 1, ordered ^ jnp.uint32(1 << 31), ~ordered)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
