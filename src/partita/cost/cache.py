"""The kinds of layers on sizes, what a layer caches, and how much of it a window or a mask keeps.

The queries of a step are the last of the positions: query number i of L sees the positions up to S - L + i,
of these under a window of w the last w only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from partita.cost.ledger import Sized
from partita.cost.local_sizes import LocalSizes
from partita.cost.number import Number, smaller
from partita.sharding.padding import ceil_to
from partita.sharding.spec import Sharding


def kept_share(queries: Number, positions: Number, window: Number | None = None) -> Number:
    """The share of all `queries` x `positions` pairs that are attended to; a float or an array.

    Under a causal mask there are L S - L (L - 1) / 2 such pairs. With a window there are as many as the sum
    of min(w, p) for p from S - L + 1 to S.
    """
    if window is None:
        return 1 - (queries - 1) / (2 * positions)
    pairs = _seen(positions, window) - _seen(positions - queries, window)
    return pairs / (queries * positions)


def _seen(positions: Number, window: Number) -> Number:
    """Sum of min(window, p) for p from 1 to `positions`."""
    growing = smaller(positions, window)
    return growing * (growing + 1) // 2 + window * (positions - growing)


Cached = Sized | tuple[Sized, Sized]
"""A layer's cache: keys and values, or rows in one."""


@dataclass(frozen=True)
class LayerKind:
    """Layers that cost the same, which are priced once."""

    name: str
    count: int
    window: int | None = None  # positions that a query sees and a cache keeps; None for all


@dataclass(frozen=True)
class LayerStack:
    """The layers that a program runs: `local_layers` of them attend to the last `window` positions only."""

    layers: int
    local_layers: int = 0
    window: int | None = None
    s_axes: str = ""
    """Mesh axes that the cached positions are interleaved over."""

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of which there is any layer."""
        found = (
            LayerKind("global", self.layers - self.local_layers),
            LayerKind("local", self.local_layers, self.window),
        )
        return tuple(kind for kind in found if kind.count)


def each(cache: Cached, change: Callable[[Sized], Sized]) -> Cached:
    """The cache with every part of it changed."""
    return (change(cache[0]), change(cache[1])) if isinstance(cache, tuple) else change(cache)


def recent(cache: Sized, positions: Number | None, shards: Number) -> Sized:
    """The last `positions` of a cache, padded to a multiple of `shards`: all of them where there are fewer,
    or where `positions` is None."""
    if positions is None:
        return cache
    padded = ceil_to(smaller(cache.sizes["S"], positions), shards)
    scale = cache.scale and replace(cache.scale, sizes={**cache.scale.sizes, "S": padded})
    return replace(cache, sizes={**cache.sizes, "S": padded}, scale=scale)


def cached_bytes(local: LocalSizes, cache: Sized) -> Number:
    """Bytes of a cache on a chip, with its scales where it is in int8."""
    return local.bytes(cache) + (0 if cache.scale is None else local.bytes(cache.scale))


def in_cache(sharding: Sharding, sizes: Mapping[str, Number], format: str, kind: str = "activation") -> Sized:
    """Keys, values or rows in a cache's format; int8 has a float32 scale for each row beside."""
    scale = None
    if format == "int8":
        scale = Sized(sharding.without("D").without("R"), sizes, "f32", "f32", kind)
    return Sized(sharding, sizes, format, kind=kind, scale=scale)
