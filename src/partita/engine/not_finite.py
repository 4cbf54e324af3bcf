"""Where a model's numbers stop being finite: its program run once more, every operation of it looked at.

Generation looks at the logits it draws from and at nothing else. Where these are not finite the tokens are
read again here, a layer at a time and a chunk of tokens at a time, by the same program over operations that
note whether their results are finite: `Watched` stands before `JaxOps`. A layer is compiled once for all
that are alike. Knows nothing about requests and slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from partita.engine.cache import WHOLE, kept, local_part, plain_part
from partita.engine.local import Local
from partita.engine.ops import JaxOps
from partita.engine.steps import Programs
from partita.program import transformer
from partita.program.ops import Pass, Product
from partita.sharding.layout import resolve
from partita.sharding.padding import ceil_to, product, union
from partita.sharding.roles import Roles
from partita.sharding.spec import parse
from partita.specs.parameters import scale_name

_CHUNK = 128
"""Tokens that are read at a time: little beside what the weights take."""

_PLACES = {
    "embed": "the embedding",
    "norm": "the norm before attention",
    "attention": "attention",
    "attention/kv": "the projection of keys and values",
    "attention/q": "the projection of queries",
    "attention/attend": "attention",
    "attention/o": "the attention's output projection",
    "ffn_norm": "the norm before the feed-forward",
    "ffn": "the feed-forward",
    "ffn/in": "the feed-forward's up projection",
    "ffn/out": "the feed-forward's down projection",
    "last": "the last token",
    "final_norm": "the final norm",
    "unembed": "the logits",
}
"""The scopes of the program in words."""

_OPERATIONS = {
    "einsum": "",
    "to": "sum over devices",
    "add": "sum with the residual",
    "shift": "bias",
    "scaled": "scale",
    "softcap": "softcap",
    "moments": "sum of squares",
    "normalise": "",
    "normalise_heads": "norm of each head",
    "gate": "activation",
    "rotate": "rotary positions",
    "softmax": "softmax",
    "shard_sums": "softmax",
    "as_cache": "cache",
    "write": "cache",
    "lookup": "",
    "last": "",
    "BLKGD,BKDS->BKLGS": "scores",
    "BKLGS,BKSD->BLKGD": "mix of values",
}
"""The operations looked at, and the einsums that have no scope of their own, in words."""


def first_not_finite(
    programs: Programs, parameters: Mapping[str, jax.Array], roles: Roles, ids: Sequence[int], prompt: int
) -> str | None:
    """The first operation whose result is not finite for these tokens, in the order of the program, and the
    largest weight up to there; None where the logits of the next token are finite.

    roles: those of prefill. prompt: how many of the tokens were read as a prompt, of which rotary positions
    may know the length; of a part of one, how many all of it has.
    Such as "in layer 3, the feed-forward's down projection; the largest weight up to there is 3e+38, in
    layers.3.ffn_out".
    """
    steps = _Steps(programs, roles, min(len(ids), _CHUNK), prompt)
    outside = {name: value for name, value in parameters.items() if not name.startswith("layers.")}
    chunks = [steps.chunk(ids, start) for start in range(0, len(ids), steps.width)]
    read, residuals = [name for name in ("embed", "positions") if name in outside], []
    for tokens, held, counts in chunks:
        x, found = steps.run("embed", outside, tokens, held, counts)
        residuals.append(x)
        if found:
            return f"in {found}; {_largest(programs, parameters, read)}"
    for layer in range(programs.model.layers):
        prefix = f"layers.{layer}."
        own = [name for name in parameters if name.startswith(prefix)]
        read += own
        weights = {f"layers.0.{name.removeprefix(prefix)}": parameters[name] for name in own}
        kind = "local" if programs.model.is_local(layer) else "global"
        cache = steps.empty(layer, len(chunks))
        for number, (_, held, counts) in enumerate(chunks):
            (x, cache), found = steps.run(kind, weights, residuals[number], cache, held, counts)
            residuals[number] = x
            if found:
                return f"in layer {layer}, {found}; {_largest(programs, parameters, read)}"
    _, found = steps.run("head", outside, residuals[-1], chunks[-1][-1])
    return f"in {found}; {_largest(programs, parameters, [*read, *outside])}" if found else None


def _largest(programs: Programs, parameters: Mapping[str, jax.Array], names: Sequence[str]) -> str:
    """The largest of these weights."""
    scales = {scale_name(name) for name in names}
    found = {name: _magnitude(programs, parameters, name) for name in names if name not in scales}
    name = max(found, key=lambda name: found[name])
    return f"the largest weight up to there is {found[name]:.3g}, in {name}"


def _magnitude(programs: Programs, parameters: Mapping[str, jax.Array], name: str) -> float:
    """The largest magnitude in a parameter."""
    value, scale = parameters[name], parameters.get(scale_name(name))
    if scale is None:
        return float(jnp.max(jnp.abs(value)))
    dims, channels = (programs.shardings[each].dims for each in (name, scale_name(name)))
    axes = tuple(axis for axis, dim in enumerate(dims) if dim not in channels)
    return float(jnp.max(jnp.max(jnp.abs(value.astype(jnp.int16)), axis=axes) * scale))


class _Steps:
    """The parts of the program for chunks of one sequence's tokens, in as many rows as the layout needs.

    Each is jitted; beside its result it gives which of its operations have one that is not finite.
    """

    def __init__(self, programs: Programs, roles: Roles, width: int, prompt: int):
        mesh, storage = programs.mesh, programs.storage
        self.programs, self.layout = programs, resolve(roles, storage, mesh, 1, width)
        self.prompt, layout = prompt, self.layout
        self.rows = product(mesh.size, layout.batch_axes)
        split = union(union(layout.query_axes, layout.new_axes), storage.s_axes)
        self.width = ceil_to(width, product(mesh.size, split))
        self._parameters = programs.parameter_specs()
        self._compiled: dict[str, tuple[Callable[..., Any], list[str]]] = {}

    def chunk(self, ids: Sequence[int], start: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens [rows, width] from one on, how many are before them and how many these are [rows]."""
        own = ids[start : start + self.width]
        tokens = np.zeros((self.rows, self.width), np.int32)
        tokens[:, : len(own)] = own
        held, counts = (np.full(self.rows, n, np.int32) for n in (start, len(own)))
        return tokens, held, counts

    def empty(self, layer: int, chunks: int) -> Any:
        """A layer's cache with room for so many chunks."""
        shapes = self.programs.cache(self.layout, self.rows, chunks * self.width, self.width)[layer]
        return jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype, device=shape.sharding), shapes)

    def run(self, name: str, weights: Mapping[str, jax.Array], *given: Any) -> tuple[Any, str]:
        """What a part gives, and its first operation, in words, whose result is not finite, or ""."""
        if name not in self._compiled:
            self._compiled[name] = self.part(name, weights)
        step, operations = self._compiled[name]
        result, bad = step(dict(weights), *given)
        places = np.flatnonzero(np.asarray(bad))
        return result, operations[places[0]] if len(places) else ""

    def part(self, name: str, weights: Mapping[str, Any]) -> tuple[Callable[..., Any], list[str]]:
        """A part of the program, jitted, and its operations in words, which are there once it is traced."""
        residual = self.programs.spec(parse(self.layout.residual))
        cache = self.programs.cache_specs(*kept(self.layout))[0]
        body, given, out = {
            "embed": (self._embed, (WHOLE, WHOLE, WHOLE), residual),
            "head": (self._head, (residual, WHOLE), WHOLE),
        }.get(
            name, (partial(self._block, name == "local"), (residual, cache, WHOLE, WHOLE), (residual, cache))
        )
        operations: list[str] = []

        def step(weights: Mapping[str, jax.Array], *given: jax.Array) -> tuple[Any, jax.Array]:
            watched = Watched(self.programs.ops(), self.programs.mesh.axes)
            result = body(watched, weights, *given)
            operations[:] = watched.operations
            return result, watched.not_finite()

        own: dict[str, PartitionSpec] = {each: self._parameters[each] for each in weights}
        return self.programs.jit(step, (own, *given), (out, WHOLE), layout=self.layout), operations

    def _pass(self, watched: Watched, held: jax.Array, counts: jax.Array) -> Pass[Local]:
        watched.counts = counts
        positions = held[:, None] + jnp.arange(self.width, dtype=jnp.int32)
        lengths, reach = (Local(n, parse("B")) for n in (held + counts, jnp.full_like(counts, self.prompt)))
        ops: Any = watched
        return Pass(ops, self.programs.model, self.layout, Local(positions, parse("B L")), lengths, reach)

    def _embed(self, watched: Watched, weights, tokens, held, counts) -> jax.Array:
        run, (outside, _) = self._pass(watched, held, counts), self.programs.weights(weights)
        return transformer.embed(run, outside, Local(tokens, parse("B L"))).value

    def _block(self, local: bool, watched: Watched, weights, x, cache, held, counts) -> Any:
        run, (_, layers) = self._pass(watched, held, counts), self.programs.weights(weights)
        parts = tuple(map(local_part, cache, kept(self.layout)))
        x, new = transformer.block(run, layers[0], Local(x, parse(self.layout.residual)), parts, local)
        return x.value, tuple(map(plain_part, new))

    def _head(self, watched: Watched, weights, x, counts) -> jax.Array:
        """Of the last token alone, so that nothing else is looked at; gives nothing of use."""
        outside, _ = self.programs.weights(weights)
        run = self._pass(watched, jnp.zeros_like(counts), counts)
        watched.counts = None
        transformer.head(run, outside, Local(x, parse(self.layout.residual)), Local(counts, parse("B")))
        return counts


class Watched:
    """`JaxOps`, noting of each operation whether a number of its result is not finite.

    counts: tokens [B] of each sequence that are no padding, where results are of all L; None: of others.
    """

    def __init__(self, ops: JaxOps, axes: str, counts: jax.Array | None = None):
        self._ops, self._axes, self.counts = ops, tuple(axes), counts
        self._scopes: list[str] = []
        self.operations: list[str] = []
        """In words, in the order they were run in."""
        self._found: list[jax.Array] = []

    def not_finite(self) -> jax.Array:
        """Int32 [operations]: on how many devices a result has such a number."""
        return jax.lax.psum(jnp.stack(self._found).astype(jnp.int32), self._axes)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        self._scopes.append(name)
        with self._ops.scope(name):
            yield
        self._scopes.pop()

    def to(self, t: Local, sharding: str) -> Local:
        """Only a sum makes other numbers."""
        result = self._ops.to(t, sharding)
        return self._noted("to", result) if t.sharding.partial else result

    def project(
        self, y: Local, gathered: str, products: Sequence[Product[Local]]
    ) -> tuple[Local, list[Local]]:
        y, found = self._ops.project(y, gathered, products)
        for each, result in zip(products, found, strict=True):
            with self.scope(each.scope):
                self._noted("einsum", result)
        return y, found

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ops, name)
        return partial(self._run, name, found) if name in _OPERATIONS else found

    def _run(self, name: str, operation: Callable[..., Local], *given: Any, **named: Any) -> Local:
        what = given[0] if name == "einsum" and given[0] in _OPERATIONS else name
        return self._noted(what, operation(*given, **named))

    def _noted(self, name: str, result: Local) -> Local:
        scope = "/".join(self._scopes)
        place, what = _PLACES.get(scope, scope), _OPERATIONS[name]
        self.operations.append(f"{place} ({what})" if what else place)
        parts = [part for part in (result, result.scale, result.times) if part is not None]
        self._found.append(jnp.any(jnp.stack([self._any(part) for part in parts])))
        return result

    def _any(self, t: Local) -> jax.Array:
        """Whether a number of this device's part is not finite, padding aside."""
        if not jnp.issubdtype(t.value.dtype, jnp.floating):
            return jnp.zeros((), bool)
        bad, dims = ~jnp.isfinite(t.value), t.sharding.dims
        if self.counts is not None and "L" in dims:
            axis = dims.index("L")
            count = bad.shape[axis]
            places = self._ops.offset(t.sharding["L"], count) + jnp.arange(count)
            # rows are all of the same sequence
            real = (places < self.counts[0]).reshape([-1 if at == axis else 1 for at in range(bad.ndim)])
            bad &= real
        return jnp.any(bad)
