"""What the Transformer is written over: the operations both interpreters provide.

A tensor carries its sharding; every operation states what it does to it. `T` is the interpreter's own
tensor: counts and sizes in `partita.cost`, a device's array in `partita.engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from partita.sharding.spec import Sharding
from partita.specs.model import Model


class Tensor(Protocol):
    """Anything with a sharding."""

    @property
    def sharding(self) -> Sharding: ...


T = TypeVar("T", bound=Tensor)


class Ops(Protocol[T]):
    """The operations; shapes are written as dims, e.g. [B L E]."""

    def scope(self, name: str) -> AbstractContextManager[object]:
        """Names the operations inside, for explanations and profiles."""
        ...

    def to(self, t: T, sharding: str) -> T:
        """Reshards: whatever collectives lead from where `t` is to `sharding`."""
        ...

    def einsum(self, text: str, a: T, b: T, *, causal: bool = False, precise: bool = False) -> T:
        """Local matmul, accumulated in float32; a contracted split dim leaves a partial sum.

        `precise` keeps float32 in the result. `causal`: the L queries are the last of S positions, so
        that part of the product will be masked (it is computed all the same).
        """
        ...

    def add(self, a: T, b: T) -> T:
        """Sum of two tensors of one sharding, partial sums included."""
        ...

    def moments(self, x: T, norm: str) -> T:
        """[B L E] -> [B L M]: sum of squares and, for LayerNorm, sum; partial over E's axes, float32."""
        ...

    def normalise(self, x: T, moments: T, parameters: T | None, model: Model) -> T:
        """[B L E] scaled to unit moments, times scale and plus bias [M E] where there are any."""
        ...

    def gate(self, h: T, feed_forward: str) -> T:
        """[B L M F] -> [B L F]: silu(gate) * up, or GELU."""
        ...

    def rotate(self, x: T, positions: T, base: float) -> T:
        """Rotary embedding of [B L ... D] at positions [B L]; pairs (d, d + D/2)."""
        ...

    def rotate_keys(self, kv: T, positions: T, base: float) -> T:
        """As `rotate`, for the keys of keys and values [M B L K D] alone."""
        ...

    def softmax(self, scores: T, positions: T, scale: float, sums: T | None = None) -> T:
        """`scale` x [B L K G S] over S, cached positions after the query's own masked.

        Where S is split, `sums` are the `shard_sums` of every shard, and each gets its part of the whole.
        """
        ...

    def shard_sums(self, scores: T, positions: T, scale: float) -> T:
        """[B L K G S] -> float32 [B L K G S M]: of each S shard, its largest of the masked `scale` x scores,
        and the sum over it of their exponentials above that."""
        ...

    def take(self, t: T, dim: str, index: int) -> T:
        """One slice of an unsplit dim, which disappears."""
        ...

    def as_cache(self, kv: T) -> T:
        """New keys and values [M B L K D] in the cache's format, as a cache [M B S K D] of their own."""
        ...

    def write(self, cache: T, kv: T, positions: T) -> T:
        """The cache [M B S K D] with new keys and values [M B L K D] at positions [B L], each on the chips
        that S deals it to."""
        ...

    def lookup(self, table: T, tokens: T) -> T:
        """Rows of [V E] for tokens [B L], as [B L E] partial over V's axes (all but one term zero)."""
        ...

    def last(self, x: T, lengths: T) -> T:
        """[B L E] -> [B L=1 E], each sequence's token number `lengths - 1`; partial over L's axes."""
        ...

    def best(self, logits: T, vocabulary: int) -> T:
        """[B L=1 V] -> [B V M]: each V shard's largest logit and its token, padding excluded."""
        ...

    def pick(self, best: T) -> T:
        """[B V M] -> [B]: the token of the largest; of equals the first."""
        ...

    def layers(
        self,
        body: Callable[[T, Mapping[str, T], T | None], tuple[T, T]],
        x: T,
        weights: Mapping[str, T],
        cache: T | None,
    ) -> tuple[T, T]:
        """Runs `body(x, weights of a layer, cache of a layer) -> (x, cache)` over all layers.

        Without a cache the layers' new keys and values are stacked into one.
        """
        ...
