"""Interpreter 1: the program's operations on sizes instead of arrays; each notes its cost in a ledger.

Sizes are Python ints (exact) or NumPy float arrays (one pass prices all candidates). A size-1 axis costs
nothing. Collective bytes are the exact form of Pope et al. 2022, appendix A.1: K chips send (K-1)/K of the
gathered output or scattered input, an all-reduce twice that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from partita.cost.cache import Cached, LayerStack, cached_bytes, each, in_cache, kept_share, recent
from partita.cost.collective_matmul import permutations, split_dot
from partita.cost.ledger import Entry, Ledger, Loop, Sized
from partita.cost.live_memory import STORED, LiveMemory
from partita.cost.local_sizes import LocalSizes
from partita.cost.number import Amount, Number, larger, part_of, quotient
from partita.cost.sampling import DrawCosts
from partita.program.ops import Product, Seen
from partita.program.options import RunOptions, gather_step, name_of, scatter_step
from partita.sharding.reshard import ReshardStep, reshard
from partita.sharding.spec import Sharding, contract, parse
from partita.specs.formats import Formats
from partita.specs.model import Model


class CostOps(DrawCosts):
    """`program.ops.Ops` over `Sized` for a mesh whose axes have `sizes` chips.

    `free_permutes` leaves collective-permutes out: for a lower bound over all orders of the axes.
    """

    def __init__(
        self,
        sizes: Mapping[str, Number],
        formats: Formats,
        stack: LayerStack,
        *,
        free_permutes: bool = False,
        run_options: RunOptions | None = None,
    ):
        local, self.ledger = LocalSizes(sizes), Ledger()
        self.run_options = run_options or RunOptions()
        super().__init__(local, LiveMemory(local, self.ledger, self.run_options.backend))
        self.formats, self.stack = formats, stack
        self.cache_bytes: Number = 0  # kept by all layers, once they have run
        self.layer_cache_bytes: Number = 0  # by the layer that keeps most
        self._window: int | None = None  # of the layers that are run
        self._free_permutes = free_permutes
        self._scopes: list[str] = []
        self._repeat = 1

    # -- the ledger -------------------------------------------------------------------------------------

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        self._scopes.append(name)
        yield
        self._scopes.pop()
        self.memory.leave(name)

    @contextmanager
    def repeated(self, times: int) -> Iterator[None]:
        """Counts everything inside so many times."""
        self._repeat = times
        yield
        self._repeat = 1

    @property
    def _scope(self) -> str:
        return "/".join(self._scopes)

    # -- the operations ---------------------------------------------------------------------------------

    def to(self, t: Sized, sharding: str) -> Sized:
        target, scale = parse(sharding), t.scale
        if scale is not None:
            scale = self.to(scale, str(target.only(scale.sharding.dims)))
        for step in reshard(t.sharding, target):
            t = self._step(t, step)
        return replace(t, scale=scale)

    def _step(self, t: Sized, step: ReshardStep, loop: Loop | None = None) -> Sized:
        """t after the step, or, with `loop`, after the permutations around a ring that stand for it."""
        before, shards = t, self.local.shards(step.axes)
        kind = "gathered" if t.kind == "weight" and step.kind != "slice" else t.kind
        t = replace(t, sharding=step.after, kind=kind)
        if step.kind == "slice" or (self._free_permutes and step.kind == "collective-permute"):
            return t
        local, messages = self.local.bytes(before), (shards > 1) * 1
        if step.kind == "all-gather":
            sent = local * (shards - 1)
        elif step.kind == "collective-permute":
            messages = step.reorders(self.local.sizes)
            sent = local * messages
        else:
            sent = part_of(local, shards - 1, shards) * (2 if step.kind == "all-reduce" else 1)
        sums = before.format if before.sharding.partial and before.settles == "bf16" else ""
        entry = Entry(
            self._scope,
            "collective-permute" if loop else step.kind,
            "",
            (step.before,),
            step.after,
            axes=step.axes,
            repeat=self._repeat,
            sent_bytes=sent,
            sums=sums,
            messages=messages if loop is None else permutations(t, step, loop, self.local),
            loop=loop,
        )
        self.ledger.entries.append(entry)
        if kind == "gathered":
            t = replace(t, moved=self.memory.copies(before, step, (messages > 0) * 1))
        self.memory.hold_step(t, step, before, (messages > 0) * 1)
        if not t.sharding.partial and before.sharding.partial:
            t = replace(t, format=t.settles)
        return t

    def einsum(
        self,
        text: str,
        a: Sized,
        b: Sized,
        *,
        plus: Sized | None = None,
        to: str | None = None,
        causal: bool = False,
        precise: bool = False,
    ) -> Sized:
        sharding = contract(text, a.sharding, b.sharding)
        sizes = {**a.sizes, **b.sizes}
        letters = set(a.sharding.dims + b.sharding.dims)
        groups = sorted({a.sharding[d] or b.sharding[d] for d in letters})
        flops = self.local.share(sizes, "".join(sorted(letters)), groups, 2)
        needed = flops * kept_share(sizes["L"], sizes["S"], self._window) if causal else flops
        settles = "f32" if precise else self.formats.activations
        travels = "f32" if precise else self.formats.reduce
        out = Sized(
            sharding, {d: sizes[d] for d in sharding.dims}, travels if sharding.partial else settles, settles
        )
        entry = Entry(
            self._scope,
            "einsum",
            text,
            (a.sharding, b.sharding),
            sharding,
            repeat=self._repeat,
            flops=flops,
            needed_flops=needed,
            weight_bytes=b.stored_bytes,
            kv_bytes=self._read(b, sizes.get("L", 1)) if b.kind == "cache" else 0,
            second=self.local.elements(b),
            moved_bytes=self._moved(a) + self._moved(b) + self.local.bytes(out),
        )
        self.ledger.entries.append(entry)
        self.memory.hold(a, b, out, *([] if plus is None else [plus]))
        out = out if plus is None else self.add(plus, out)
        if to is None:
            return out
        step = scatter_step(out.sharding, to)
        loop = self._loop(step, "scatter")
        if step is not None and loop is not None:
            out = self._looped(out, step, loop, [(a, b, out)])
        return self.to(out, to)

    def _loop(self, step: ReshardStep | None, kind: str, *scopes: str) -> Loop | None:
        """The ring that a collective goes round, where the options loop it with the product next to it and
        the ring of any of the candidates has more than one chip."""
        if step is None:
            return None
        name, chips = name_of([*self._scopes, *scopes]), self.local.shards(step.axes)
        way = self.run_options.way(name, kind)
        if way == "none" or not np.any(chips > 1):
            return None
        return Loop(f"{name}/{kind}", step.kind, way == "two-way", chips, ())

    def _looped(
        self, t: Sized, step: ReshardStep, loop: Loop, products: Sequence[tuple[Sized, Sized, Sized]]
    ) -> Sized:
        """t after the step that is looped with the products noted last: the operands and result of each.

        Each is made in parts, and a compiler may first cut the matrix.
        """
        dots = self.ledger.entries[-len(products) :]
        for i, (a, b, out) in enumerate(products):
            dots[i] = split_dot(dots[i], loop, self.local.bytes(a), self.local.bytes(out))
            self.memory.hold(a, out, out, besides=self.local.bytes(b))
        self.ledger.entries[-len(products) :] = dots
        return self._step(t, step, replace(loop, dots=tuple(dots)))

    def project(
        self, y: Sized, gathered: str, products: Sequence[Product[Sized]]
    ) -> tuple[Sized, list[Sized]]:
        step = gather_step(y.sharding, gathered, [p.text for p in products])
        loop = None if step is None else self._loop(step, "gather", products[0].scope)
        if step is None or loop is None:
            with self.scope("gather"):
                y = self.to(y, gathered)
            found = []
            for p in products:
                found.append(self._product_of(y, p, p.to))
                # attention first: hidden units of a parallel block wait for it as y, from which they come
                self.memory.wait(p.scope, y if p.scope.startswith("ffn/") else found[-1])
            return y, found
        with self.scope("gather"):
            shard = self.to(y, str(step.before))
        y = replace(shard, sharding=step.after)
        found = [self._product_of(y, p) for p in products]
        operands = [(y, p.weight, out) for p, out in zip(products, found, strict=True)]
        with self.scope(products[0].scope):
            y = self._looped(shard, step, loop, operands)
        for i, p in enumerate(products):
            with self.scope(p.scope):
                found[i] = self.to(found[i], p.to)
            self.memory.wait(p.scope, found[i])
        return y, found

    def _product_of(self, y: Sized, p: Product[Sized], to: str | None = None) -> Sized:
        with self.scope(p.scope):
            return self.einsum(p.text, y, p.weight, to=to)

    def _moved(self, operand: Sized) -> Number:
        """Bytes of an operand, 0 if it is a weight as stored or a cache."""
        return 0 if operand.kind in STORED else self.local.bytes(operand)

    def _read(self, cache: Sized, queries: Number) -> Amount:
        """Bytes of a cache that a step of `queries` new tokens must read: what its first token sees.

        The positions behind are the step's own, and need not have left the chip.
        """
        stored = cached_bytes(self.local, cache)
        if isinstance(queries, int) and queries == 1:
            return stored
        positions = cache.sizes["S"]
        return quotient(stored * (positions - (queries - 1)), positions)

    def add(self, a: Sized, b: Sized) -> Sized:
        if a.sharding != b.sharding:
            raise ValueError(f"cannot add {a.sharding} and {b.sharding}")
        return a

    def moments(self, x: Sized, norm: str) -> Sized:
        sharding = Sharding("BLM", (x.sharding["B"], x.sharding["L"], ""), x.sharding.axes[-1])
        sizes = {"B": x.sizes["B"], "L": x.sizes["L"], "M": 2 if norm == "layernorm" else 1}
        return Sized(sharding, sizes, "f32", "f32")

    def normalise(self, x: Sized, moments: Sized, parameters: Sized | None, model: Model) -> Sized:
        return x

    def gate(self, h: Sized, feed_forward: str) -> Sized:
        out = self.take(h, "M", 0)
        self.memory.hold(h, out)  # what attention adds to a parallel block is as large as what waits here
        self.memory.leave("ffn")
        if self.run_options.backend.keeps_gated:
            self.memory.wait("ffn/gated", out)
        return out

    def shift(self, x: Sized, bias: Sized) -> Sized:
        return x

    def scaled(self, x: Sized, factor: float) -> Sized:
        return x

    def softcap(self, x: Sized, cap: float) -> Sized:
        return x

    def normalise_heads(self, x: Sized, parameters: Sized | None, model: Model) -> Sized:
        return x

    def rotate(
        self, x: Sized, positions: Sized, model: Model, local: bool, reach: Sized | None = None
    ) -> Sized:
        self.memory.hold_waves(x, local and model.local_rotary_base is not None)
        return x

    def shard_sums(self, scores: Sized, seen: Seen[Sized]) -> Sized:
        axes = scores.sharding["S"]
        sharding = Sharding(scores.sharding.dims + "M", (*scores.sharding.axes, ""))
        return Sized(sharding, {**scores.sizes, "S": self.local.shards(axes), "M": 2}, "f32", "f32")

    def softmax(self, scores: Sized, seen: Seen[Sized], sums: Sized | None = None) -> Sized:
        out = replace(scores, format=self.formats.activations)
        self.memory.hold(scores, out, besides=self.memory.mask(scores))
        return out

    def take(self, t: Sized, dim: str, index: int) -> Sized:
        sizes = {d: n for d, n in t.sizes.items() if d != dim}
        return replace(t, sharding=t.sharding.without(dim), sizes=sizes)

    # -- layers and their caches --------------------------------------------------------------------------

    def layers(
        self,
        body: Callable[[Sized, Mapping[str, Sized], Any, bool], tuple[Sized, Any]],
        x: Sized,
        weights: Mapping[str, Sized],
        cache: Cached | None,
    ) -> tuple[Sized, Any]:
        """Runs each kind of layer once, repeated by how many there are of it; a kind has a name in the ledger
        where there are several."""
        kinds, found, earlier = self.stack.kinds, (x, None), x.sizes["L"] - 1
        for kind in kinds:
            self._repeat, self._window = kind.count, kind.window
            self.ledger.layers += kind.count
            with self.scope(kind.name) if len(kinds) > 1 else nullcontext():
                seen = None if cache is None else each(cache, lambda part: self._recent(part, earlier))
                found = body(x, weights, seen, kind.name == "local")
            kept = found[1] if isinstance(found[1], tuple) else (found[1],)
            further = 0 if cache is None else earlier  # a cache has room for what a later query does not see
            size = sum(cached_bytes(self.local, self._recent(part, further)) for part in kept)
            self.cache_bytes = self.cache_bytes + size * kind.count
            self.layer_cache_bytes = larger(size, self.layer_cache_bytes)
        self._repeat, self._window = 1, None
        return found

    def _recent(self, cache: Sized, earlier: Number) -> Sized:
        """The last positions of a cache, as many as the layers that are run need of it: their window, and
        what the `earlier` queries of a step see before it."""
        positions = None if self._window is None else self._window + earlier
        return recent(cache, positions, self.local.shards(self.stack.s_axes))

    def as_cache(self, new: Sized, dims: str) -> Sized:
        sizes = {("S" if d == "L" else d): n for d, n in new.sizes.items()}
        return in_cache(new.sharding.rename("L", "S").only(dims), sizes, self.formats.kv)

    def write(self, cache: Sized, new: Sized, positions: Sized, lengths: Sized) -> Sized:
        return cache

    # -- of latent attention ----------------------------------------------------------------------------

    def read(self, cache: Sized, queries: Sized) -> Sized:
        if cache.kind != "cache":
            return cache
        read, at = self._read(cache, queries.sizes["L"]), cache.sharding
        entry = Entry(self._scope, "read", "", (at,), at, repeat=self._repeat, kv_bytes=read)
        self.ledger.entries.append(entry)
        return replace(cache, kind="read")

    def join(self, first: Sized, rope: Sized) -> Sized:
        dim = first.sharding.dims[-1]
        sizes = {d: n for d, n in first.sizes.items() if d != dim}
        sizes["R"] = first.sizes[dim] + rope.sizes["P"]
        return replace(first, sharding=first.sharding.rename(dim, "R"), sizes=sizes)

    def halves(self, t: Sized, rope: int, first: str) -> tuple[Sized, Sized]:
        sizes = {d: n for d, n in t.sizes.items() if d != "R"}
        return (
            replace(t, sharding=t.sharding.rename("R", first), sizes={**sizes, first: t.sizes["R"] - rope}),
            replace(t, sharding=t.sharding.rename("R", "P"), sizes={**sizes, "P": rope}),
        )

    def one_query(self, t: Sized) -> bool:
        return bool(np.all(t.sizes["L"] == 1))

    # -- vocabulary -------------------------------------------------------------------------------------

    def lookup(self, table: Sized, tokens: Sized) -> Sized:
        rows = table.sharding[table.sharding.dims[0]]
        sharding = Sharding("BLE", (tokens.sharding["B"], tokens.sharding["L"], table.sharding["E"]), rows)
        sizes = {"B": tokens.sizes["B"], "L": tokens.sizes["L"], "E": table.sizes["E"]}
        out = Sized(sharding, sizes, self.formats.activations, self.formats.activations)
        before = (table.sharding, tokens.sharding)
        self.ledger.entries.append(Entry(self._scope, "lookup", "", before, sharding, repeat=self._repeat))
        self.memory.hold(out)
        return out

    def last(self, x: Sized, counts: Sized) -> Sized:
        sharding = x.sharding.split("L", "").summing(x.sharding["L"])
        return Sized(sharding, {**x.sizes, "L": 1}, x.format, x.format)

    def best(self, logits: Sized, vocabulary: int) -> Sized:
        axes = logits.sharding["V"]
        sizes = {"B": logits.sizes["B"], "V": self.local.shards(axes), "M": 2}
        return Sized(Sharding("BVM", (logits.sharding["B"], axes, "")), sizes, "f32", "f32")

    def pick(self, best: Sized) -> Sized:
        return self.to(replace(self.take(self.take(best, "M", 0), "V", 0), format="f32"), "B")
