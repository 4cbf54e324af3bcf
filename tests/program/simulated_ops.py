"""The program's operations on a simulated mesh, device by device in plain NumPy: what a block computes.

Shares with the interpreters under test only the choice of collectives. It has what one block needs, and a
cache that already holds the rows of the new tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tests.sharding.simulated_mesh import Held, SimulatedMesh

from partita.program.ops import Product, Seen
from partita.program.options import RunOptions
from partita.sharding import Sharding, parse
from partita.sharding.reshard import reshard
from partita.sharding.spec import contract
from partita.specs import Model


@dataclass(frozen=True)
class Shards:
    """A tensor: what each device holds of it, and how that is a part of the whole."""

    held: Held
    sharding: Sharding

    def map(self, change: Callable[[np.ndarray], np.ndarray], sharding: Sharding | None = None) -> Shards:
        return Shards({d: change(a) for d, a in self.held.items()}, sharding or self.sharding)

    def meet(self, other: Shards, change: Callable[..., np.ndarray], sharding: Sharding) -> Shards:
        return Shards({d: change(a, other.held[d]) for d, a in self.held.items()}, sharding)


class SimulatedOps:
    """`program.ops.Ops` over `Shards`; float64 throughout."""

    def __init__(self, mesh: SimulatedMesh, d_model: int):
        self.mesh, self.d_model, self.run_options = mesh, d_model, RunOptions()

    def place(self, whole: np.ndarray, sharding: str) -> Shards:
        """Every device's part of a tensor."""
        return Shards(self.mesh.place(whole, parse(sharding)), parse(sharding))

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        yield

    def to(self, t: Shards, sharding: str) -> Shards:
        for step in reshard(t.sharding, parse(sharding)):
            t = Shards(self.mesh.run(step, t.held), step.after)
        return t

    def einsum(
        self,
        text: str,
        a: Shards,
        b: Shards,
        *,
        plus: Shards | None = None,
        to: str | None = None,
        causal: bool = False,
        precise: bool = False,
    ) -> Shards:
        out = a.meet(b, lambda x, y: np.einsum(text, x, y), contract(text, a.sharding, b.sharding))
        out = out if plus is None else self.add(out, plus)
        return out if to is None else self.to(out, to)

    def project(
        self, y: Shards, gathered: str, products: Sequence[Product[Shards]]
    ) -> tuple[Shards, list[Shards]]:
        y = self.to(y, gathered)
        assert not any(p.bias for p in products)  # no model here has one
        return y, [self.einsum(p.text, y, p.weight, to=p.to) for p in products]

    def add(self, a: Shards, b: Shards) -> Shards:
        assert a.sharding == b.sharding
        return a.meet(b, np.add, a.sharding)

    def moments(self, x: Shards, norm: str) -> Shards:
        sharding = Sharding("BLM", (x.sharding["B"], x.sharding["L"], ""), x.sharding.axes[-1])
        sums = [lambda v: (v**2).sum(-1)] + ([lambda v: v.sum(-1)] if norm == "layernorm" else [])
        return x.map(lambda v: np.stack([s(v) for s in sums], axis=-1), sharding)

    def normalise(self, x: Shards, moments: Shards, parameters: Shards | None, model: Model) -> Shards:
        dims = x.held[self.mesh.devices[0]].shape[-1] * self.mesh.shards(x.sharding.axes[-1])

        def unit(v: np.ndarray, m: np.ndarray) -> np.ndarray:
            mean = m[..., 1:] / dims if model.norm == "layernorm" else 0.0
            return (v - mean) / np.sqrt(m[..., :1] / dims - mean**2 + model.norm_epsilon)

        x = x.meet(moments, unit, x.sharding)
        if parameters is None:
            return x
        scaled = x.meet(parameters, lambda v, p: v * p[0], x.sharding)
        if model.norm == "rmsnorm":
            return scaled
        return scaled.meet(parameters, lambda v, p: v + p[1], x.sharding)

    def gate(self, h: Shards, feed_forward: str) -> Shards:
        return h.map(lambda v: v[:, :, 0] / (1 + np.exp(-v[:, :, 0])) * v[:, :, 1], h.sharding.without("M"))

    def rotate(
        self, x: Shards, positions: Shards, model: Model, local: bool, reach: Shards | None = None
    ) -> Shards:
        def turned(v: np.ndarray, p: np.ndarray) -> np.ndarray:
            half = v.shape[-1] // 2
            angles = p[..., None] * model.rotary_base ** (-np.arange(half) / half)
            angles = angles.reshape(*p.shape, *[1] * (v.ndim - 3), half)
            first, second = v[..., :half], v[..., half:]
            cos, sin = np.cos(angles), np.sin(angles)
            return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)

        return x.meet(positions, turned, x.sharding)

    def shard_sums(self, scores: Shards, seen: Seen[Shards]) -> Shards:
        sharding = Sharding(scores.sharding.dims + "M", (*scores.sharding.axes, ""))

        def sums(v: np.ndarray) -> np.ndarray:
            largest = (v * seen.scale).max(-1, keepdims=True)
            return np.stack([largest, np.exp(v * seen.scale - largest).sum(-1, keepdims=True)], axis=-1)

        return scores.map(sums, sharding)

    def softmax(self, scores: Shards, seen: Seen[Shards], sums: Shards | None = None) -> Shards:
        assert scores.sharding.dims == "BLKGS"
        if sums is not None:  # of the last position alone, which sees all the others wherever they lie

            def share(v: np.ndarray, s: np.ndarray) -> np.ndarray:
                largest = s[..., 0].max(-1, keepdims=True)
                return np.exp(v * seen.scale - largest) / (s[..., 1] * np.exp(s[..., 0] - largest)).sum(
                    -1, keepdims=True
                )

            return scores.meet(sums, share, scores.sharding)

        def shares(v: np.ndarray, p: np.ndarray) -> np.ndarray:
            past = np.arange(v.shape[-1]) <= p[:, :, None, None, None]
            weights = np.exp(np.where(past, v * seen.scale, -np.inf))
            return weights / weights.sum(-1, keepdims=True)

        return scores.meet(seen.positions, shares, scores.sharding)

    def as_cache(self, new: Shards, dims: str) -> Shards:
        assert dims == "BSR"
        return replace(new, sharding=new.sharding.rename("L", "S"))

    def write(self, cache: Shards, new: Shards, positions: Shards, lengths: Shards) -> Shards:
        return cache

    def _not_simulated(self, *_: object, **__: object) -> Any:
        """Operations outside a block, of attention with separate keys and values, and of some families."""
        raise NotImplementedError

    lookup = last = best = pick = take = layers = normalise_heads = shift = scaled = softcap = _not_simulated


class SimulatedLatentOps(SimulatedOps):
    """`program.latent.LatentOps` over `Shards`."""

    def join(self, first: Shards, rope: Shards) -> Shards:
        assert not first.sharding.axes[-1]
        assert not rope.sharding.axes[-1]
        assert first.sharding.partial == rope.sharding.partial
        sharding = first.sharding.rename(first.sharding.dims[-1], "R")
        return first.meet(rope, lambda a, b: np.concatenate([a, b], axis=-1), sharding)

    def halves(self, t: Shards, rope: int, first: str) -> tuple[Shards, Shards]:
        assert not t.sharding["R"]
        return (
            t.map(lambda v: v[..., :-rope], t.sharding.rename("R", first)),
            t.map(lambda v: v[..., -rope:], t.sharding.rename("R", "P")),
        )

    def read(self, cache: Shards, queries: Shards) -> Shards:
        return cache

    def one_query(self, t: Shards) -> bool:
        return t.held[self.mesh.devices[0]].shape[1] * self.mesh.shards(t.sharding["L"]) == 1
