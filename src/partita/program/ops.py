"""What the Transformer is written over: the operations both interpreters provide.

A tensor carries its sharding; every operation states what it does to it. `T` is the interpreter's own
tensor: counts and sizes in `partita.cost`, a device's array in `partita.engine`.

A matrix in int8 carries the scale of each of its output channels with it, a cache in int8 that of each head
and position: `to` moves the scale with the values, and whoever multiplies with them applies it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from partita.program.options import RunOptions
from partita.sharding.layout import Layout
from partita.sharding.spec import Sharding
from partita.specs.model import Model


class Tensor(Protocol):
    """Anything with a sharding."""

    @property
    def sharding(self) -> Sharding: ...


T = TypeVar("T", bound=Tensor)

NO_TOKEN = -1
"""What is drawn instead of a token from logits that are not all finite numbers."""


@dataclass(frozen=True)
class Seen(Generic[T]):
    """Which cached positions queries attend to, and what becomes of a score on the way to its share."""

    positions: T
    """[B L] of the queries."""
    lengths: T | None
    """[B] positions written so far, of a cache that holds position p in place p mod S; None where the S
    places are the positions 0, 1, 2 ... of the queries' own step."""
    window: int | None
    """The last so many positions, the query's own included; None for all."""
    scale: float
    softcap: float | None = None
    slopes: np.ndarray | None = None
    """float32 [K G], without padding: what a score of each head loses for every position between query and
    key, after its scale and softcap (ALiBi); None where it loses nothing."""


@dataclass(frozen=True)
class Pass(Generic[T]):
    """A forward pass: the interpreter and its model, and what is the same for all layers."""

    ops: Ops[T]
    model: Model
    layout: Layout
    positions: T
    """[B L] of the tokens."""
    lengths: T | None = None
    """[B] tokens of each sequence that the cache holds after this step; None where there is none yet."""
    reach: T | None = None
    """[B] tokens of each whole prompt that is read, in however many steps; None where each token is the last
    of its sequence, as in decode. Rotary scaling that goes by the length of a sequence needs it."""


class Product(NamedTuple, Generic[T]):
    """One matrix that `Ops.project` multiplies with, and where the product goes."""

    scope: str
    text: str
    weight: T
    to: str
    bias: T | None = None


class Ops(Protocol[T]):
    """The operations; shapes are written as dims, e.g. [B L E]."""

    @property
    def run_options(self) -> RunOptions:
        """Choices that change no result."""
        ...

    def scope(self, name: str) -> AbstractContextManager[object]:
        """Names the operations inside, for explanations and profiles."""
        ...

    def to(self, t: T, sharding: str) -> T:
        """Reshards: whatever collectives lead from where `t` is to `sharding`."""
        ...

    def einsum(
        self,
        text: str,
        a: T,
        b: T,
        *,
        plus: T | None = None,
        to: str | None = None,
        causal: bool = False,
        precise: bool = False,
    ) -> T:
        """Local matmul, accumulated in float32; a contracted split dim leaves a partial sum.

        The scale of an int8 `b` multiplies the product once it is fully summed, by this or a later `to`.
        `plus`, a partial sum as the product is, is added to it. With `to` the product is resharded at once,
        which may go on while it is still being computed. `precise` keeps float32 in the result. `causal`: the
        L queries are the last of S positions, so that part of the product will be masked (it is computed all
        the same).
        """
        ...

    def project(self, y: T, gathered: str, products: Sequence[Product[T]]) -> tuple[T, list[T]]:
        """y resharded to `gathered`, and its product with every weight, resharded too, biases added.

        The products may go on while y is still being gathered.
        """
        ...

    def add(self, a: T, b: T) -> T:
        """Sum of two tensors of one sharding, partial sums included."""
        ...

    def shift(self, x: T, bias: T) -> T:
        """x plus a vector over its last dim, split as that is."""
        ...

    def scaled(self, x: T, factor: float) -> T:
        """x times a number."""
        ...

    def softcap(self, x: T, cap: float) -> T:
        """cap * tanh(x / cap)."""
        ...

    def moments(self, x: T, norm: str) -> T:
        """[B L E] -> [B L M]: sum of squares and, for LayerNorm, sum; partial over E's axes, float32."""
        ...

    def normalise(self, x: T, moments: T, parameters: T | None, model: Model) -> T:
        """[B L E] scaled to unit moments, times scale and plus bias [M E] where there are any."""
        ...

    def normalise_heads(self, x: T, parameters: T | None, model: Model) -> T:
        """[B L ... D]: every head on its own to unit moments, times scale and plus bias [M D]."""
        ...

    def gate(self, h: T, feed_forward: str) -> T:
        """[B L M F] -> [B L F]: the gate's activation times up, or GELU."""
        ...

    def rotate(self, x: T, positions: T, model: Model, local: bool, reach: T | None = None) -> T:
        """Rotary embedding of [B L ... D] at positions [B L], as the model's local or its other layers have
        it. reach [B]: tokens of each prompt that is read."""
        ...

    def softmax(self, scores: T, seen: Seen[T], sums: T | None = None) -> T:
        """Shares of scores [B K L G S] over S, what is not `seen` masked.

        Where S is split, `sums` are the `shard_sums` of every shard, and each gets its part of the whole.
        """
        ...

    def shard_sums(self, scores: T, seen: Seen[T]) -> T:
        """[B K L G S] -> float32 [B K L G S M]: of each S shard, its largest of the scaled and masked scores,
        and the sum over it of their exponentials above that."""
        ...

    def take(self, t: T, dim: str, index: int) -> T:
        """One slice of an unsplit dim, which disappears."""
        ...

    def as_cache(self, new: T, dims: str) -> T:
        """New keys or values [B L K D], or rows [B L R], in the cache's format, as a cache of their own whose
        dims are in the order "BKDS", "BKSD" or "BSR"."""
        ...

    def write(self, cache: T, new: T, positions: T, lengths: T) -> T:
        """The cache [B K D S] or [B K S D] with new keys or values [B L K D] at positions [B L], each on the
        chip that its position lies on; those below zero, and those from `lengths` [B] on, are not written."""
        ...

    def lookup(self, table: T, tokens: T) -> T:
        """Rows of [V E] for tokens [B L], as [B L E] partial over V's axes (all but one term zero)."""
        ...

    def last(self, x: T, counts: T) -> T:
        """[B L E] -> [B L=1 E], each sequence's token number `counts - 1`; partial over L's axes."""
        ...

    def best(self, logits: T, vocabulary: int) -> T:
        """[B L=1 V] -> [B V M]: each V shard's largest logit and its token, padding excluded; infinity where
        one of them is not finite."""
        ...

    def pick(self, best: T) -> T:
        """[B V M] -> [B]: the token of the largest, of equals the first; `NO_TOKEN` where it is infinite."""
        ...

    def layers(
        self,
        body: Callable[[T, Mapping[str, T], Any, bool], tuple[T, Any]],
        x: T,
        weights: Any,
        cache: Any,
    ) -> tuple[T, Any]:
        """Runs `body(x, weights of a layer, cache of a layer, whether it is local) -> (x, cache)` over all
        layers; what the interpreter keeps of weights and caches of all layers is its own."""
        ...
