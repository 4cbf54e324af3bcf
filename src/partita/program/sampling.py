"""Drawing the next token, once: the text that one interpreter prices and the other runs.

The vocabulary stays split over chips. Every cut (min-p, top-k, top-p) is a floor that logits must reach. Each
chip sends its best candidates, and only these are sorted; a floor below them is searched for by sums of a few
numbers. A draw is the largest of logit plus Gumbel noise (Maddison et al. 2014, "A* sampling", section 2),
which needs neither a sum over the vocabulary nor a sort: each chip sends its own best, as in greedy decoding.
Knows nothing about slots or noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, get_args, runtime_checkable

from partita.program.ops import Ops, T
from partita.program.transformer import greedy
from partita.specs.sampling import MOST_LOGPROBS, Sampling

Kind = Literal["greedy", "sampled", "wide", "full"]
"""How much is done for a token, each kind all that those before it do.

greedy: the largest logit. sampled: temperature, min-p, top-k up to `CANDIDATES` and top-p with such a top-k.
wide: top-p of the whole vocabulary. full: any top-k, penalties, biases and log-probabilities.
"""
KINDS: tuple[Kind, ...] = get_args(Kind)

CANDIDATES = 128
"""Logits of each shard that are compared with those of others."""
ALTERNATIVES = MOST_LOGPROBS
"""Most likely tokens whose log-probabilities are found beside the chosen one's."""
LOGPROBS = 1 + 2 * ALTERNATIVES
"""Numbers of a token's log-probabilities, see `Drawn`."""

BITS = 2
"""So many of a logit's 32 are settled by each round of a search, which compares with 2^BITS edges and sums
over chips."""
ROUNDS = 32 // BITS

Weight = Literal["count", "share"]
Turn = Any
"""Which round it is, counted from 0; a number that an interpreter may know only as it runs."""

NUMBERS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""Settings [B] that are one number each; beside them are `seed` [B M] (two words) and `sample` [B]."""


@runtime_checkable
class SamplingOps(Ops[T], Protocol[T]):
    """What an interpreter provides beside `Ops` to draw tokens. Logits are [B L=1 V]."""

    def rows(self, logits: T, rows: T) -> T:
        """Those of the sequences whose numbers `rows` [B] has; neither is split over B."""
        ...

    def penalise(self, logits: T, history: Mapping[str, T], settings: Mapping[str, T]) -> T:
        """Logits with biases and penalties; `history`: `prompt`, `output` (how often) and `bias` [B V]."""
        ...

    def count(self, output: T, tokens: T) -> T:
        """`output` [B V] with one more of each sequence's token [B]."""
        ...

    def heat(self, logits: T, vocabulary: int, settings: Mapping[str, T]) -> T:
        """Logits over the temperature (as they are where that is 0); minus infinity in the padding."""
        ...

    def candidates(self, logits: T, count: int) -> T:
        """[B V M]: the `count` largest of each shard, or all it has."""
        ...

    def rank(self, candidates: T, count: int) -> T:
        """[B V M] -> [B M]: the `count` largest of all shards, or all there are, the largest first."""
        ...

    def floor(self, ranked: T, settings: Mapping[str, T]) -> T:
        """[B]: the least logit that min-p, top-k and top-p keep, as far as those ranked can tell."""
        ...

    def weights(self, logits: T, ranked: T, floor: T, by: Weight) -> T:
        """[B L V]: 1 of every token, or the share of one that reaches the floor, relative to the largest."""
        ...

    def ordered(self, logits: T) -> T:
        """[B L V]: whole numbers of 32 bits in the order of the logits."""
        ...

    def lowest(self, ordered: T) -> T:
        """[B]: zero, where a search begins."""
        ...

    def above(self, ordered: T, weights: T, edges: T, turn: Turn) -> T:
        """[B M]: weight from each of 2^BITS edges up, the first being `edges` [B]; partial over V's axes."""
        ...

    def narrow(self, edges: T, above: T, total: T, settings: Mapping[str, T], by: Weight, turn: Turn) -> T:
        """[B]: the highest edge with weight enough above it; all weight is the first of `total` [B M]."""
        ...

    def turns(self, turn: Callable[[T, Turn], T], edges: T, first: int) -> T:
        """`edges` after turns `first` to `ROUNDS` - 1, each of the same shapes."""
        ...

    def raise_floor(self, floor: T, edges: T, settings: Mapping[str, T], by: Weight) -> T:
        """[B]: the floor, or what a search ended at where that decides."""
        ...

    def draw(
        self,
        logits: T,
        floor: T,
        settings: Mapping[str, T],
        positions: T,
        own: T,
    ) -> T:
        """[B V M]: of each shard the largest logit plus noise, its token and its `own` logit by the model;
        infinity first where one of its own is not finite."""
        ...

    def winner(self, drawn: T) -> tuple[T, T]:
        """[B V M] of all shards -> token [B] and its own logit [B] of the largest; of equals the first;
        `NO_TOKEN` where that is not finite."""
        ...

    def alternatives(self, logits: T, vocabulary: int, count: int) -> T:
        """[B V M]: of each shard the `count` largest logits, their tokens, and the sum of the exponentials of
        all above the largest."""
        ...

    def logprobs(self, alternatives: T, own: T, count: int) -> T:
        """[B V M], [B] -> [B M]: log-probabilities of the token and of the `count` likeliest, and these."""
        ...


@dataclass(frozen=True)
class Drawing(Generic[T]):
    """What tokens are drawn by, a row for each sequence."""

    settings: Mapping[str, T]
    """[B] of each sequence's request, see `NUMBERS`."""
    positions: T
    """[B]: where the token will stand."""
    history: Mapping[str, T]
    """See `SamplingOps.penalise`; needed by kind "full" only."""


@dataclass(frozen=True)
class Drawn(Generic[T]):
    """Next tokens [B]; how often each token was written, theirs counted [B V]; and float32 [B M]: the token's
    log-probability, those of the `ALTERNATIVES` likeliest, and which tokens these are."""

    tokens: T
    output: T | None = None
    logprobs: T | None = None


def needs(request: Sampling) -> Kind:
    """The least kind that serves a request."""
    if request.penalised or request.logprobs is not None:
        return "full"
    if request.greedy:
        return "greedy"
    if request.top_k > CANDIDATES:
        return "full"
    return "wide" if request.top_p < 1 and not request.top_k else "sampled"


def logits_of_slots(ops: SamplingOps[T], logits: T, rows: T, sharding: str) -> T:
    """Logits of prompts [B 1 V] as those of slots, each slot's from the prompt in its row of `rows` [B]."""
    with ops.scope("slots"):
        whole = ops.to(logits, str(logits.sharding.split("B", "")))
        return ops.to(ops.rows(whole, rows), sharding)


def sample(
    ops: SamplingOps[T],
    logits: T,
    vocabulary: int,
    kind: Kind,
    drawing: Drawing[T],
    candidates: int = CANDIDATES,
) -> Drawn[T]:
    """The next token [B] of logits [B 1 V_fe], the last of which are padding.

    A sequence's token depends on its own logits and settings, not on the kind, so long as the kind is enough
    for it. Of each shard `candidates` are compared; more of them than `CANDIDATES` change no token and cost
    more, up to a sort of all tokens on every chip.
    """
    if kind == "greedy":
        return Drawn(greedy(ops, logits, vocabulary))
    batch = f"B_{logits.sharding['B']}"
    settings = {
        name: ops.to(t, f"{batch} M" if "M" in t.sharding.dims else batch)
        for name, t in drawing.settings.items()
    }
    with ops.scope("sample"):
        own = logits
        if kind == "full":
            logits = ops.penalise(logits, drawing.history, settings)
        logits = ops.heat(logits, vocabulary, settings)
        with ops.scope("candidates"):
            best = ops.to(ops.candidates(logits, candidates), f"{batch} V M")
            ranked = ops.rank(best, candidates)
            floor = ops.floor(ranked, settings)
        if kind == "full":
            with ops.scope("top_k"):
                floor = _search(ops, logits, ranked, floor, settings, "count")
        if kind in ("wide", "full"):
            with ops.scope("top_p"):
                floor = _search(ops, logits, ranked, floor, settings, "share")
        with ops.scope("draw"):
            drawn = ops.draw(logits, floor, settings, ops.to(drawing.positions, batch), own)
            tokens, logit = ops.winner(ops.to(drawn, "B V M"))
        if kind != "full":
            return Drawn(tokens)
        with ops.scope("logprobs"):
            likeliest = ops.to(ops.alternatives(own, vocabulary, ALTERNATIVES), "B V M")
            logprobs = ops.logprobs(likeliest, logit, ALTERNATIVES)
        return Drawn(tokens, ops.count(drawing.history["output"], ops.to(tokens, batch)), logprobs)


def _search(ops: SamplingOps[T], logits: T, ranked: T, floor: T, settings: Mapping[str, T], by: Weight) -> T:
    """The floor raised to the highest logit with as much weight from it up as a setting asks for.

    Exact: logits have 32 bits, and every round settles `BITS` of them for all sequences at once.
    """
    ordered, weights = ops.ordered(logits), ops.weights(logits, ranked, floor, by)

    def summed(edges: T, turn: Turn) -> T:
        above = ops.above(ordered, weights, edges, turn)  # partial over V's axes
        return ops.to(above, str(above.sharding.summing("")))

    def narrowed(edges: T, turn: Turn) -> T:
        return ops.narrow(edges, summed(edges, turn), total, settings, by, turn)

    lowest = ops.lowest(ordered)
    total = summed(lowest, 0)
    edges = ops.turns(narrowed, ops.narrow(lowest, total, total, settings, by, 0), first=1)
    return ops.raise_floor(floor, edges, settings, by)
