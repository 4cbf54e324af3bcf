"""Interpreter 1: the program's operations on sizes instead of arrays; each notes its cost in a ledger.

Sizes are Python ints (exact) or NumPy float arrays (one pass prices all candidates). A size-1 axis costs
nothing. Collective bytes are the exact form of Pope et al. 2022, appendix A.1: K chips send (K-1)/K of the
gathered output or scattered input, an all-reduce twice that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction

import numpy as np

from partita.cost.cache import Layers, kept_share
from partita.cost.collective_matmul import CollectiveMatmulCosts
from partita.cost.ledger import Entry, Ledger, Loop, Number, Sized
from partita.cost.live_memory import STORED, LiveMemory
from partita.cost.sampling import DrawCosts
from partita.program.ops import Seen
from partita.program.options import RunOptions
from partita.sharding.layout import product
from partita.sharding.reshard import ReshardStep, reshard
from partita.sharding.spec import Sharding, contract, parse
from partita.specs.formats import BYTES, Formats
from partita.specs.model import Model


class CostOps(LiveMemory, Layers, CollectiveMatmulCosts, DrawCosts):
    """`program.ops.Ops` over `Sized` for a mesh whose axes have `sizes` chips.

    Of the `layers`, `local_layers` attend to the last `window` positions only and keep no more of them, dealt
    out over the axes `dealt`.
    `free_permutes` leaves collective-permutes out: for a lower bound over all orders of the axes.
    """

    def __init__(
        self,
        sizes: Mapping[str, Number],
        formats: Formats,
        layers: int,
        *,
        local_layers: int = 0,
        window: int | None = None,
        dealt: str = "",
        free_permutes: bool = False,
        run_options: RunOptions | None = None,
    ):
        self.sizes, self.formats = sizes, formats
        self.run_options = run_options or RunOptions()
        # how often the program runs a layer of each kind, and the window of that kind
        self._kinds = {"global": (layers - local_layers, None), "local": (local_layers, window)}
        self._window: int | None = None
        self._dealt = dealt
        self.cache_bytes: Number = 0  # kept by all layers, once they have run
        self._free_permutes = free_permutes
        self.ledger = Ledger()
        self._scope: list[str] = []
        self._waiting = {}
        self._repeat = 1
        self._shards: dict[str, Number] = {}
        self._bytes: dict[tuple, Number] = {}
        self._counted: list[tuple[Number, ...]] = []

    # -- the ledger -------------------------------------------------------------------------------------

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        self._scope.append(name)
        yield
        self._scope.pop()
        self._leave(name)

    @contextmanager
    def repeated(self, times: int) -> Iterator[None]:
        """What is done inside is done so often."""
        self._repeat = times
        yield
        self._repeat = 1

    def shards(self, axes: str) -> Number:
        """How many shards `axes` make; kept, since the same groups of axes come back all the time."""
        found = self._shards.get(axes)
        if found is None:
            found = self._shards[axes] = product(self.sizes, axes)
        return found

    def elements(self, t: Sized) -> Number:
        """Elements one chip holds."""
        return self._share(t.sizes, t.sharding.dims, t.sharding.axes)

    def _share(self, sizes: Mapping[str, Number], dims: str, groups: Iterable[str], times: int = 1) -> Number:
        """Product of the sizes of `dims`, a chip's part of it where they are split over these groups of axes.

        Every split divides. Arrays of candidates broadcast; those of B and S are the large ones: they come
        last, and `times` before them.
        """
        large = [sizes[d] for d in dims if d in "BS"]
        whole = math.prod(sizes[d] for d in dims if d not in "BS")
        shards = math.prod(self.shards(axes) for axes in groups if axes)
        if isinstance(shards, int) and isinstance(whole, int) and all(isinstance(n, int) for n in large):
            return whole * math.prod(large) // shards * times
        found = whole * times / shards
        for number in large:
            found = found * number
        return found

    def bytes(self, t: Sized) -> Number:
        """Bytes one chip holds; kept, since most operations ask for those of the operation before."""
        sizes = tuple(t.sizes[d] for d in t.sharding.dims)
        key = (t.sharding.dims, t.sharding.axes, t.sharding.partial, t.format, t.settles, *map(id, sizes))
        found = self._bytes.get(key)
        if found is None:
            found = self._share(t.sizes, t.sharding.dims, t.sharding.axes, self._width(t))
            self._bytes[key] = found
            self._counted.append(sizes)  # an id is a number's own while the number lives
        return found

    def _width(self, t: Sized) -> Number:
        """Bytes of an element: a sum over axes of one chip is whole, and of the format it settles in."""
        travels = BYTES[t.format]
        if not t.sharding.partial or t.format == t.settles:
            return travels
        settles, over = BYTES[t.settles], self.shards(t.sharding.partial)
        if isinstance(over, int):
            return settles if over == 1 else travels
        return np.where(over == 1, settles, travels)

    def _note(self, kind: str, what: str, before: tuple[Sharding, ...], after: Sharding, **costs) -> None:
        scope = "/".join(self._scope)
        self.ledger.entries.append(Entry(scope, kind, what, before, after, repeat=self._repeat, **costs))

    # -- the operations ---------------------------------------------------------------------------------

    def to(self, t: Sized, sharding: str) -> Sized:
        target, scale = parse(sharding), t.scale
        if scale is not None:
            scale = self.to(scale, str(target.only(scale.sharding.dims)))
        for step in reshard(t.sharding, target):
            t = self._step(t, step)
        return replace(t, scale=scale)

    def _step(self, t: Sized, step: ReshardStep, loop: Loop | None = None) -> Sized:
        """t after the step; with `loop` the permutations around a ring that stand for it."""
        before, shards = t, self.shards(step.axes)
        kind = "gathered" if t.kind == "weight" and step.kind != "slice" else t.kind
        t = replace(t, sharding=step.after, kind=kind)
        if step.kind == "slice" or (self._free_permutes and step.kind == "collective-permute"):
            return t
        local, messages = self.bytes(before), (shards > 1) * 1
        if step.kind == "all-gather":
            sent = local * (shards - 1)
        elif step.kind == "collective-permute":
            messages = step.reorders(self.sizes)
            sent = local * messages
        else:
            sent = _part(local, shards - 1, shards) * (2 if step.kind == "all-reduce" else 1)
        sums = before.format if before.sharding.partial and before.settles == "bf16" else ""
        moved: dict[str, Number] = {"sent_bytes": sent, "messages": messages, "sums": sums}
        if loop is not None:
            moved |= self.permutations(t, step, loop)
        noted = "collective-permute" if loop else step.kind
        self._note(noted, "", (step.before,), step.after, axes=step.axes, **moved)
        if kind == "gathered":
            t = replace(t, moved=self._copies(before, step, (messages > 0) * 1))
        self._hold_step(t, step, before, (messages > 0) * 1)
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
        flops = self._share(sizes, "".join(sorted(letters)), groups, 2)
        needed = flops * kept_share(sizes["L"], sizes["S"], self._window) if causal else flops
        settles = "f32" if precise else self.formats.activations
        travels = "f32" if precise else self.formats.reduce
        out = Sized(
            sharding, {d: sizes[d] for d in sharding.dims}, travels if sharding.partial else settles, settles
        )
        self._note(
            "einsum",
            text,
            (a.sharding, b.sharding),
            sharding,
            flops=flops,
            needed_flops=needed,
            weight_bytes=b.stored_bytes,
            kv_bytes=self._read(b, sizes.get("L", 1)) if b.kind == "cache" else 0,
            second=self.elements(b),
            moved_bytes=self._moved(a) + self._moved(b) + self.bytes(out),
        )
        self._hold(a, b, out, *([] if plus is None else [plus]))
        out = out if plus is None else self.add(plus, out)
        if to is None:
            return out
        return self.to(self.scattered(a, b, out, to), to)

    def _moved(self, operand: Sized) -> Number:
        """Bytes of an operand that is neither a weight as stored nor a cache."""
        return 0 if operand.kind in STORED else self.bytes(operand)

    def _read(self, cache: Sized, queries: Number) -> Number:
        """Bytes of a cache that a step of `queries` new tokens must read: what its first token sees.

        The positions behind are the step's own, and need not have left the chip.
        """
        stored = self._cached(cache)
        if isinstance(queries, int) and queries == 1:
            return stored
        positions = cache.sizes["S"]
        return _exact(stored * (positions - (queries - 1)), positions)

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
        self._hold(h, out)  # what attention adds to a parallel block is as large as what waits here
        self._leave("ffn")
        if self.run_options.backend.keeps_gated:
            self._wait("ffn/gated", out)
        return out

    def shift(self, x: Sized, bias: Sized) -> Sized:
        return x

    def scaled(self, x: Sized, factor: float) -> Sized:
        return x

    def softcap(self, x: Sized, cap: float) -> Sized:
        return x

    def normalise_heads(self, x: Sized, parameters: Sized | None, model: Model) -> Sized:
        return x

    def rotate(self, x: Sized, positions: Sized, model: Model, local: bool) -> Sized:
        self._hold_waves(x, local and model.local_rotary_base is not None)
        return x

    def shard_sums(self, scores: Sized, seen: Seen[Sized]) -> Sized:
        axes = scores.sharding["S"]
        sharding = Sharding(scores.sharding.dims + "M", (*scores.sharding.axes, ""))
        return Sized(sharding, {**scores.sizes, "S": self.shards(axes), "M": 2}, "f32", "f32")

    def softmax(self, scores: Sized, seen: Seen[Sized], sums: Sized | None = None) -> Sized:
        out = replace(scores, format=self.formats.activations)
        self._hold(scores, out, besides=self._mask(scores))
        return out

    def take(self, t: Sized, dim: str, index: int) -> Sized:
        sizes = {d: n for d, n in t.sizes.items() if d != dim}
        return replace(t, sharding=t.sharding.without(dim), sizes=sizes)

    # -- of latent attention ----------------------------------------------------------------------------

    def read(self, cache: Sized, queries: Sized) -> Sized:
        if cache.kind != "cache":
            return cache
        self._note(
            "read", "", (cache.sharding,), cache.sharding, kv_bytes=self._read(cache, queries.sizes["L"])
        )
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
        self._note("lookup", "", (table.sharding, tokens.sharding), sharding)
        self._hold(out)
        return out

    def last(self, x: Sized, counts: Sized) -> Sized:
        sharding = x.sharding.split("L", "").summing(x.sharding["L"])
        return Sized(sharding, {**x.sizes, "L": 1}, x.format, x.format)

    def best(self, logits: Sized, vocabulary: int) -> Sized:
        axes = logits.sharding["V"]
        sizes = {"B": logits.sizes["B"], "V": product(self.sizes, axes), "M": 2}
        return Sized(Sharding("BVM", (logits.sharding["B"], axes, "")), sizes, "f32", "f32")

    def pick(self, best: Sized) -> Sized:
        return self.to(replace(self.take(self.take(best, "M", 0), "V", 0), format="f32"), "B")


def _part(value: Number, part: Number, whole: Number) -> Number:
    """value x part / whole; the division first where `value` is the large array of candidates."""
    if isinstance(value, np.ndarray) or isinstance(whole, np.ndarray):
        return value * (part / whole)
    return _exact(value * part, whole)


def _exact(value: Number, divisor: Number) -> Number:
    """value / divisor, exactly where both are whole: an int if it is one, else a fraction."""
    if isinstance(value, int) and isinstance(divisor, int):
        found = Fraction(value, divisor)
        return found.numerator if found.denominator == 1 else found
    return value / divisor
