"""Drawing tokens on sizes: what the candidates, sums and draws are that travel.

The operations that `program.sampling.SamplingOps` has beside those of `Ops`. Sorting and noise count no
FLOPs: dots alone do. What is held is counted in arrays of the logits' size, as many as XLA keeps at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from partita.cost.ledger import Sized
from partita.cost.live_memory import LiveMemory
from partita.cost.local_sizes import LocalSizes
from partita.cost.number import Number, smaller
from partita.program.sampling import (
    BITS,
    NUMBERS,
    ROUNDS,
    Drafts,
    Drawing,
    Kind,
    SamplingOps,
    Turn,
    Weight,
    sample,
    verify,
)
from partita.sharding.spec import Sharding

_SAMPLED = 5
"""Arrays that a draw holds: logits as they are and over the temperature, two words of noise, and scores."""
_WIDE = 8
"""Arrays that a search holds: logits thrice, in order, and weights, and what a loop begins with."""
_FULL = 12
"""Arrays that penalties hold: those of a search, three numbers for each token, and its new count."""


class DrawCosts:
    """Sizes on a chip of what is drawn from logits [B L=1 V], all of it float32."""

    def __init__(self, local: LocalSizes, memory: LiveMemory):
        self.local, self.memory = local, memory

    def rows(self, logits: Sized, rows: Sized) -> Sized:
        out = replace(logits, sizes={**logits.sizes, "B": rows.sizes["B"]})
        self.memory.hold(logits, out)
        return out

    def penalise(self, logits: Sized, history: Mapping[str, Sized], settings: Mapping[str, Sized]) -> Sized:
        self.memory.hold(besides=_FULL * self.local.bytes(logits))
        return logits

    def count(self, output: Sized, tokens: Sized) -> Sized:
        return output

    def each(self, logits: Sized) -> Sized:
        sizes = {**logits.sizes, "B": logits.sizes["B"] * logits.sizes["L"], "L": 1}
        return replace(logits, sizes=sizes)

    def spread(self, t: Sized, logits: Sized) -> Sized:
        return replace(t, sizes={**t.sizes, "B": t.sizes["B"] * logits.sizes["L"]})

    def following(self, positions: Sized, logits: Sized) -> Sized:
        return self.spread(positions, logits)

    def with_drafts(self, output: Sized, drafts: Sized) -> Sized:
        return replace(output, sizes={**output.sizes, "B": output.sizes["B"] * drafts.sizes["L"]})

    def accepted(self, tokens: Sized, drafts: Sized, counts: Sized) -> Sized:
        return counts

    def count_accepted(self, output: Sized, tokens: Sized, accepted: Sized) -> Sized:
        return output

    def heat(self, logits: Sized, vocabulary: int, settings: Mapping[str, Sized]) -> Sized:
        self.memory.hold(besides=_SAMPLED * self.local.bytes(logits))
        return logits

    def candidates(self, logits: Sized, count: int) -> Sized:
        return self._of_shards(logits, self._most(logits, count))

    def rank(self, candidates: Sized, count: int) -> Sized:
        batch = candidates.sharding["B"]
        most = smaller(count, candidates.sizes["V"] * candidates.sizes["M"])
        return Sized(Sharding("BM", (batch, "")), {"B": candidates.sizes["B"], "M": most}, "f32", "f32")

    def floor(self, ranked: Sized, settings: Mapping[str, Sized]) -> Sized:
        return self._one(ranked)

    def weights(self, logits: Sized, ranked: Sized, floor: Sized, by: Weight) -> Sized:
        return logits

    def ordered(self, logits: Sized) -> Sized:
        self.memory.hold(besides=_WIDE * self.local.bytes(logits))
        return logits

    def lowest(self, ordered: Sized) -> Sized:
        return self._one(ordered)

    def above(self, ordered: Sized, weights: Sized, edges: Sized, turn: Turn) -> Sized:
        sharding = Sharding("BM", (ordered.sharding["B"], ""), ordered.sharding["V"])
        return Sized(sharding, {"B": ordered.sizes["B"], "M": 2**BITS}, "f32", "f32")

    def narrow(
        self,
        edges: Sized,
        above: Sized,
        total: Sized,
        settings: Mapping[str, Sized],
        by: Weight,
        turn: Turn,
    ) -> Sized:
        return edges

    def turns(self, turn: Callable[[Sized, Turn], Sized], edges: Sized, first: int) -> Sized:
        for number in range(first, ROUNDS):
            edges = turn(edges, number)
        return edges

    def raise_floor(self, floor: Sized, edges: Sized, settings: Mapping[str, Sized], by: Weight) -> Sized:
        return floor

    def draw(
        self,
        logits: Sized,
        floor: Sized,
        settings: Mapping[str, Sized],
        positions: Sized,
        own: Sized,
    ) -> Sized:
        return self._of_shards(logits, 3)

    def winner(self, drawn: Sized) -> tuple[Sized, Sized]:
        found = self._one(drawn)
        return found, found

    def alternatives(self, logits: Sized, vocabulary: int, count: int) -> Sized:
        return self._of_shards(logits, 2 * self._most(logits, count) + 1)

    def logprobs(self, alternatives: Sized, own: Sized, count: int) -> Sized:
        return Sized(Sharding("BM", (own.sharding["B"], "")), {**own.sizes, "M": 2 * count + 1}, "f32", "f32")

    # -- sizes ------------------------------------------------------------------------------------------

    def _most(self, logits: Sized, count: int) -> Number:
        """The `count` largest logits, or how many a shard has if these are fewer."""
        shard = logits.sizes["V"] / self.local.shards(logits.sharding["V"])
        return smaller(count, shard if isinstance(shard, np.ndarray) else int(shard))

    def _of_shards(self, logits: Sized, numbers: Number) -> Sized:
        """So many `numbers` from each shard of the vocabulary."""
        axes = logits.sharding["V"]
        sizes = {"B": logits.sizes["B"], "V": self.local.shards(axes), "M": numbers}
        return Sized(Sharding("BVM", (logits.sharding["B"], axes, "")), sizes, "f32", "f32")

    def _one(self, t: Sized) -> Sized:
        """One number for each sequence."""
        return Sized(Sharding("B", (t.sharding["B"],)), {"B": t.sizes["B"]}, "f32", "f32")


def price_draw(
    ops: SamplingOps[Sized], logits: Sized, vocabulary: int, kind: Kind, drafts: Sized | None = None
) -> None:
    """Prices the next token of logits [B 1 V], or with `drafts` [B L] those after each token of logits
    [B L V]; every chip knows the settings of all sequences."""
    one = Sized(Sharding("B", ("",)), {"B": logits.sizes["B"], "M": 2}, "f32", "f32")
    settings: dict[str, Sized] = dict.fromkeys((*NUMBERS, "sample"), one)
    settings["seed"] = replace(one, sharding=Sharding("BM", ("", "")))
    known = replace(logits, sharding=logits.sharding.without("L"))
    history: dict[str, Sized] = dict.fromkeys(("prompt", "output", "bias"), known)
    drawing = Drawing(settings, one, history)
    if drafts is None:
        sample(ops, logits, vocabulary, kind, drawing)
    else:
        verify(ops, logits, vocabulary, kind, drawing, Drafts(drafts, one))
