"""Layers on sizes: one of each kind, repeated; what they cache, and how much of it a window or a mask keeps.

The queries of a step are the last of the positions: query number i of L sees the positions up to S - L + i,
of these under a window of w the last w only."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from partita.cost.ledger import Ledger, Number, Sized
from partita.sharding.layout import ceil_to
from partita.sharding.spec import Sharding
from partita.specs.formats import Formats


def kept_share(queries: Number, positions: Number, window: Number | None = None) -> Number:
    """(query, position) pairs that are attended to, over all `queries` x `positions`; a float or an array.

    Causal: L S - L (L - 1) / 2 pairs. With a window, the sum of min(w, p) for p from S - L + 1 to S.
    """
    if window is None:
        return 1 - (queries - 1) / (2 * positions)
    pairs = _seen(positions, window) - _seen(positions - queries, window)
    return pairs / (queries * positions)


def smaller(first: Number, second: Number) -> Number:
    """The smaller of two numbers or arrays; whole numbers stay exact."""
    arrays = isinstance(first, np.ndarray) or isinstance(second, np.ndarray)
    return np.minimum(first, second) if arrays else min(first, second)


def _seen(positions: Number, window: Number) -> Number:
    """Sum of min(window, p) for p from 1 to `positions`."""
    growing = smaller(positions, window)
    return growing * (growing + 1) // 2 + window * (positions - growing)


Cached = Sized | tuple[Sized, Sized]
"""A layer's cache: keys and values, or rows in one."""


class Layers:
    """Runs a layer of each kind, whose window is known while it runs."""

    formats: Formats
    ledger: Ledger
    cache_bytes: Number
    _kinds: Mapping[str, tuple[int, int | None]]
    _window: int | None
    _dealt: str
    _repeat: int

    def layers(
        self,
        body: Callable[[Sized, Mapping[str, Sized], Any, bool], tuple[Sized, Any]],
        x: Sized,
        weights: Mapping[str, Sized],
        cache: Cached | None,
    ) -> tuple[Sized, Cached]:
        """Once for each kind of layer there is, repeated by how many there are."""
        kinds = {name: kind for name, kind in self._kinds.items() if kind[0]}
        return [
            self._layer(name, len(kinds) > 1, body, x, weights, cache, *kind) for name, kind in kinds.items()
        ][-1]

    def _layer(
        self,
        name: str,
        named: bool,
        body: Callable[[Sized, Mapping[str, Sized], Any, bool], tuple[Sized, Any]],
        x: Sized,
        weights: Mapping[str, Sized],
        cache: Cached | None,
        count: int,
        window: int | None,
    ) -> tuple[Sized, Cached]:
        """`count` layers of one window, named in the ledger where there are others."""
        self._repeat, self._window = count, window
        self.ledger.layers += count
        before = x.sizes["L"] - 1
        with self.scope(name) if named else nullcontext():
            recent = None if cache is None else _each(cache, lambda part: self._recent(part, before))
            x, kept = body(x, weights, recent, name == "local")
        parts = kept if isinstance(kept, tuple) else (kept,)
        further = 0 if cache is None else before  # a cache has room for what a later query does not see
        kept_bytes = sum(self._cached(self._recent(part, further)) for part in parts)
        self.cache_bytes = self.cache_bytes + kept_bytes * count
        self._repeat, self._window = 1, None
        return x, kept

    def _recent(self, cache: Sized, before: Number = 0) -> Sized:
        """The last positions of a cache, as many as a layer's window needs of it.

        `before`: how many of its queries come before the last, and see what was in the window then.
        """
        if self._window is None:
            return cache
        positions = smaller(cache.sizes["S"], self._window + before)
        padded = ceil_to(positions, self.shards(self._dealt))
        scale = cache.scale and replace(cache.scale, sizes={**cache.scale.sizes, "S": padded})
        return replace(cache, sizes={**cache.sizes, "S": padded}, scale=scale)

    def _cached(self, cache: Sized) -> Number:
        """Bytes of a cache, with its scales where it is in int8."""
        return self.bytes(cache) + (0 if cache.scale is None else self.bytes(cache.scale))

    def as_cache(self, new: Sized, dims: str) -> Sized:
        sizes = {("S" if d == "L" else d): n for d, n in new.sizes.items()}
        return in_cache(new.sharding.rename("L", "S").only(dims), sizes, self.formats.kv)

    def write(self, cache: Sized, new: Sized, positions: Sized, lengths: Sized) -> Sized:
        return cache

    @abstractmethod
    def scope(self, name: str) -> AbstractContextManager[None]: ...

    @abstractmethod
    def shards(self, axes: str) -> Number: ...

    @abstractmethod
    def bytes(self, t: Sized) -> Number: ...


def _each(cache: Cached, change: Callable[[Sized], Sized]) -> Cached:
    return (change(cache[0]), change(cache[1])) if isinstance(cache, tuple) else change(cache)


def in_cache(sharding: Sharding, sizes: Mapping[str, Number], format: str, kind: str = "activation") -> Sized:
    """Keys, values or rows in a cache's format; int8 has a float32 scale for each row beside."""
    scale = None
    if format == "int8":
        scale = Sized(sharding.without("D").without("R"), sizes, "f32", "f32", kind)
    return Sized(sharding, sizes, format, kind=kind, scale=scale)
