"""Interpreter 2: the program's operations on one device's arrays, inside `jax.shard_map`.

What each operation means is in `partita.program.ops`. Matmuls accumulate in float32, and partial sums
travel in `formats.reduce` (float32 unless told otherwise). Axes of size 1 start no collective. Attention's
operations are in `attention_ops.py`, draws of tokens in `sampling.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from partita.engine import cpu
from partita.engine.attention_ops import AttentionOps, capped
from partita.engine.collective_matmul import Ring, Sums, gathered_products, scattered_product
from partita.engine.collectives import move
from partita.engine.local import Local, aligned
from partita.engine.matmul import product
from partita.engine.sampling import Draws
from partita.program.ops import NO_TOKEN, Product
from partita.program.options import RunOptions, gather_step, name_of, scatter_step
from partita.sharding.reshard import ReshardStep, reshard
from partita.sharding.spec import Sharding, contract, parse
from partita.specs.formats import Formats
from partita.specs.model import Model

DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "int8": jnp.int8}


class JaxOps(AttentionOps, Draws):
    """`program.ops.Ops` over `Local`, for a mesh whose axes have `sizes` devices."""

    def __init__(
        self,
        sizes: Mapping[str, int],
        formats: Formats,
        model: Model,
        on_cpu: bool,
        run_options: RunOptions | None = None,
    ):
        self.sizes, self.model, self.on_cpu = sizes, model, on_cpu
        self.run_options = run_options or RunOptions()
        self._scopes: list[str] = []
        self.activations, self.kv = DTYPES[formats.activations], DTYPES[formats.kv]
        self.reduce = DTYPES[formats.reduce]
        self.waves = {}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        self._scopes.append(name)
        with jax.named_scope(name):
            yield
        self._scopes.pop()

    # -- resharding -------------------------------------------------------------------------------------

    def to(self, t: Local, sharding: str) -> Local:
        target = parse(sharding)
        scale = None if t.scale is None else self.to(t.scale, str(target.only(t.scale.sharding.dims)))
        for step in reshard(t.sharding, target):
            summed = t.sharding.partial and not step.after.partial
            t = replace(
                t,
                value=move(t.value, step, self.sizes, self.run_options.backend.in_blocks),
                sharding=step.after,
            )
            t = self._settled(t) if summed else t
        return t if scale is None else replace(t, scale=scale)

    def _settled(self, t: Local) -> Local:
        """A product that is fully summed: scaled and shifted by what was pending, in the format it keeps."""
        value = t.value
        if t.times is not None:
            value = value.astype(jnp.float32) * self._channels(t.times, t)
        if t.plus is not None:
            value = value.astype(jnp.float32) + self._channels(t.plus, t)
        if t.settles is not None:
            value = value.astype(t.settles)
        return replace(t, value=value, times=None, plus=None)

    def _channels(self, part: Local, t: Local) -> jax.Array:
        """Numbers for some dims of t, as t is split there, in a shape that broadcasts against it."""
        part = self.to(part, str(t.sharding.only(part.sharding.dims)))
        return aligned(part.value.astype(jnp.float32), part.sharding.dims, t.sharding.dims)

    # -- arithmetic -------------------------------------------------------------------------------------

    def einsum(
        self,
        text: str,
        a: Local,
        b: Local,
        *,
        plus: Local | None = None,
        to: str | None = None,
        causal: bool = False,
        precise: bool = False,
    ) -> Local:
        return self._multiplied(Product("", text, b, to or ""), a, plus, precise)

    def _multiplied(
        self, p: Product[Local], a: Local, plus: Local | None = None, precise: bool = False
    ) -> Local:
        """`einsum`, and a bias added to it."""
        sharding, scale = contract(p.text, a.sharding, p.weight.sharding), p.weight.scale
        if scale is not None and not _scales_result(p):  # summed away: it goes first
            a, scale = replace(a, value=a.value * self._channels(scale, a)), None
        step = scatter_step(sharding, p.to) if p.to else None
        ring = self._ring(step, "scatter")
        if step is None or ring is None:
            value = self._product(p.text, a.value, p.weight.value)
            if a.times is not None:  # shares of attention
                value = value * aligned(a.times.value, a.times.sharding.dims, sharding.dims)
            out = self._summed(Local(value, sharding, times=scale, plus=p.bias), precise)
            if plus is not None:
                out = self.add(plus, replace(out, value=cpu.apart(out.value)) if self.on_cpu else out)
        else:
            times = added = None
            if plus is not None:  # to which the scale does not belong
                times = scale and self._channels(scale, Local(a.value, sharding))
                added, scale = self._unpended(plus).value.astype(jnp.float32), None
            sums = Sums(jnp.float32 if precise else self.reduce, times, added)
            value = scattered_product(p.text, a.value, p.weight.value, step.dim, ring, self._product, sums)
            out = self._summed(Local(value, step.after, times=scale, plus=p.bias), precise)
        return self.to(out, p.to) if p.to else out

    def _product(self, text: str, a: jax.Array, b: jax.Array) -> jax.Array:
        """float32, of this device's parts."""
        return (cpu.product if self.on_cpu else product)(text, a, b, self.activations)

    def _ring(self, step: ReshardStep | None, kind: str, *scopes: str) -> Ring | None:
        """The devices that a collective passes one after the other, where the options loop it with the
        product next to it."""
        if step is None:
            return None
        way = self.run_options.way(name_of([*self._scopes, *scopes]), kind)
        ring = Ring.over(step.axes, self.sizes, way == "two-way")
        return ring if ring.axes and way != "none" else None

    def _summed(self, t: Local, precise: bool) -> Local:
        """A product in float32 in the format it travels in, where it is still to be summed, or settles in."""
        t = replace(t, settles=jnp.float32 if precise else self.activations)
        if not t.sharding.partial:
            return self._settled(t)
        return t if precise else replace(t, value=t.value.astype(self.reduce))

    def project(
        self, y: Local, gathered: str, products: Sequence[Product[Local]]
    ) -> tuple[Local, list[Local]]:
        """An int8 weight whose scale is summed over is multiplied with the scaled y, which is not one for
        all: then nothing is looped."""
        step, ring = gather_step(y.sharding, gathered, [p.text for p in products]), None
        if step is not None and all(_scales_result(p) for p in products):
            ring = self._ring(step, "gather", products[0].scope)
        if step is None or ring is None:
            with self.scope("gather"):
                y = self.to(y, gathered)
            return y, [self._product_of(y, p) for p in products]
        with self.scope("gather"):
            y = self.to(y, str(step.before))
        others = [(p.text, p.weight.value) for p in products]
        whole, values = gathered_products(y.value, y.sharding.dims, step.dim, others, ring, self._product)
        y, found = replace(y, value=whole, sharding=step.after), []
        for p, value in zip(products, values, strict=True):
            with self.scope(p.scope):
                sharding = contract(p.text, y.sharding, p.weight.sharding)
                out = self._summed(Local(value, sharding, times=p.weight.scale, plus=p.bias), False)
                found.append(self.to(out, p.to))
        return y, found

    def _product_of(self, y: Local, p: Product[Local]) -> Local:
        with self.scope(p.scope):
            return self._multiplied(p, y)

    def add(self, a: Local, b: Local) -> Local:
        if a.sharding != b.sharding:
            raise ValueError(f"cannot add {a.sharding} and {b.sharding}")
        a, b = self._unpended(a), self._unpended(b)
        return replace(a, value=a.value + b.value)

    def _unpended(self, t: Local) -> Local:
        """A partial sum without anything pending: each addend has scales of its own, so they go before."""
        if t.times is None:
            return t
        value = t.value.astype(jnp.float32) * self._channels(t.times, t)
        return replace(t, value=value.astype(t.value.dtype), times=None)

    def shift(self, x: Local, bias: Local) -> Local:
        return replace(x, value=(x.value + bias.value).astype(x.value.dtype))

    def scaled(self, x: Local, factor: float) -> Local:
        return replace(x, value=x.value * jnp.asarray(factor, x.value.dtype))

    def softcap(self, x: Local, cap: float) -> Local:
        return replace(x, value=capped(x.value / cap) * cap)

    def moments(self, x: Local, norm: str) -> Local:
        value = x.value.astype(jnp.float32)
        sums = [jnp.sum(value * value, axis=-1)]
        if norm == "layernorm":
            sums.append(jnp.sum(value, axis=-1))
        sharding = Sharding("BLM", (x.sharding["B"], x.sharding["L"], ""), x.sharding["E"])
        return Local(jnp.stack(sums, axis=-1), sharding, jnp.float32)

    def normalise(self, x: Local, moments: Local, parameters: Local | None, model: Model) -> Local:
        return self._unit(x, moments.value / model.d_model, parameters, model)

    def normalise_heads(self, x: Local, parameters: Local | None, model: Model) -> Local:
        value = x.value.astype(jnp.float32)
        means = [jnp.mean(power, axis=-1) for power in (value * value, value)]
        return self._unit(x, jnp.stack(means, axis=-1), parameters, model)

    def _unit(self, x: Local, means: jax.Array, parameters: Local | None, model: Model) -> Local:
        """x brought to unit moments; means [..., 2] of its squares and of itself over all of the last dim."""
        value, variance = x.value.astype(jnp.float32), means[..., :1]
        if model.norm == "layernorm":
            variance = jnp.maximum(variance - jnp.square(means[..., 1:2]), 0)  # rounding goes below
            value = value - means[..., 1:2]
        # a sum of squares that became infinite would make 0 of every number, as if nothing had happened
        factor = jax.lax.rsqrt(variance + model.norm_epsilon)
        value = value * jnp.where(jnp.isfinite(variance), factor, jnp.nan)
        if parameters is not None:
            value = value * parameters.value[0]
            if model.norm == "layernorm":
                value = value + parameters.value[1]
        return replace(x, value=value.astype(self.activations))

    def gate(self, h: Local, feed_forward: str) -> Local:
        value = h.value.astype(jnp.float32)
        first = value[:, :, 0]
        match feed_forward:
            case "swiglu":
                value = jax.nn.silu(first) * value[:, :, 1]
            case "geglu":
                value = jax.nn.gelu(first, approximate=True) * value[:, :, 1]
            case _:
                value = jax.nn.gelu(first, approximate=feed_forward == "gelu")
        return Local(value.astype(self.activations), h.sharding.without("M"), self.activations)

    # -- layers -----------------------------------------------------------------------------------------

    def layers(
        self,
        body: Callable[[Local, Mapping[str, Local], Any, bool], tuple[Local, Any]],
        x: Local,
        weights: Sequence[Mapping[str, Local]],
        cache: Sequence[Any] | None,
    ) -> tuple[Local, Any]:
        """One after the other, each on arrays of its own: slices of stacked ones would be copied.

        Layers whose arrays have the same shapes and shardings are traced and lowered once.
        """

        @partial(jax.jit, static_argnums=3)
        def layer(x: Local, weights: Mapping[str, Local], cache: Any, local: bool) -> tuple[Local, Any]:
            self.waves = {}  # those of another layer belong to its trace
            return body(x, weights, cache, local)

        kept = []
        for i, own in enumerate(weights):
            x, new = layer(x, own, None if cache is None else cache[i], self.model.is_local(i))
            kept.append(new)
        return x, kept

    # -- vocabulary -------------------------------------------------------------------------------------

    def lookup(self, table: Local, tokens: Local) -> Local:
        rows = table.value.shape[0]
        dim = table.sharding.dims[0]
        wanted = tokens.value - self.offset(table.sharding[dim], rows)
        here = (wanted >= 0) & (wanted < rows)
        wanted = jnp.clip(wanted, 0, rows - 1)
        found = table.value[wanted].astype(jnp.float32)
        if table.scale is not None:
            found = found * table.scale.value[wanted][..., None]
        sharding = Sharding(
            "BLE", (tokens.sharding["B"], tokens.sharding["L"], table.sharding["E"]), table.sharding[dim]
        )
        found = jnp.where(here[..., None], found, 0)
        return Local(found.astype(self.activations), sharding, self.activations)

    def last(self, x: Local, counts: Local) -> Local:
        count = x.value.shape[1]
        wanted = counts.value - 1 - self.offset(x.sharding["L"], count)
        here = (wanted >= 0) & (wanted < count)
        found = jnp.take_along_axis(x.value, jnp.clip(wanted, 0, count - 1)[:, None, None], axis=1)
        sharding = x.sharding.split("L", "").summing(x.sharding["L"])
        return Local(jnp.where(here[:, None, None], found, 0), sharding, self.activations)

    def best(self, logits: Local, vocabulary: int) -> Local:
        values = logits.value[:, 0]
        finite = jnp.all(jnp.isfinite(values), axis=-1)
        ids = self.offset(logits.sharding["V"], values.shape[1]) + jnp.arange(values.shape[1])
        values = jnp.where(ids < vocabulary, values, -jnp.inf)
        best, largest = jnp.argmax(values, axis=-1), jnp.max(values, axis=-1)
        pair = [jnp.where(finite, largest, jnp.inf), ids[best].astype(jnp.float32)]  # exact below 2^24 tokens
        sharding = Sharding("BVM", (logits.sharding["B"], logits.sharding["V"], ""))
        return Local(jnp.stack(pair, axis=-1)[:, None], sharding)

    def pick(self, best: Local) -> Local:
        shard = jnp.argmax(best.value[..., 0], axis=1)[:, None]
        largest, ids = jnp.take_along_axis(best.value, shard[..., None], axis=1)[:, 0].T
        ids = jnp.where(jnp.isfinite(largest), ids.astype(jnp.int32), NO_TOKEN)
        return self.to(Local(ids, Sharding("B", (best.sharding["B"],))), "B")


def _scales_result(p: Product[Local]) -> bool:
    """Whether the scale of the weight, if it has one, scales the product's channels."""
    return p.weight.scale is None or set(p.weight.scale.sharding.dims) <= set(p.text.split("->")[1])
