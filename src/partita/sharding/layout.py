"""Layouts: how the weights are stored, and how one phase uses them on a mesh of known sizes.

`Storage` is shared by both phases: one copy of the weights, split `E_x F_yz`. A `Layout` says, for one
phase and batch, which axes stay on E and F, which split tokens instead (their weights are gathered before
use), and how attention is split. Both hold only names; sizes enter through `Storage.padded`.

Query heads are written as two dims, H = K G: K key/value heads, each with a group of G query heads. An
axis that splits heads splits either K or G, whichever pads less.

The rules that turn roles into layouts are written once, for axes of any sizes: `plan_storage` and `resolve`
apply them to a mesh, `planner.batched_layout` to many layouts at once, whose axes have arrays of sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

import numpy as np

from partita.sharding.mesh import Mesh
from partita.sharding.padding import Number, assign_heads, ceil_to, product, union
from partita.sharding.roles import AxisRoles, Roles, prefers_k, splits_heads
from partita.specs.model import Model
from partita.specs.parameters import dim_sizes, parameter_table


@dataclass(frozen=True)
class Storage:
    """Where the one copy of the weights lies; every field is a group of axes, outermost first."""

    e: str  # split the E dim of every matrix
    f: str  # split F and V: the axes of fg and fk, those that must leave last
    fg: str  # of f, split the query groups G; the key/value projection over E
    fk: str  # of f, split the key/value heads K
    k_axes: str  # every axis that splits K in the weights or in attention, in either phase
    g_axes: str  # every axis that splits G, likewise
    padded_axes: str  # every axis that splits a weight in either phase: E, F and V are padded for these
    s_axes: str  # every axis that attention splits the cached positions over, in either phase

    @overload
    def padded(self, model: Model, sizes: Mapping[str, int]) -> Mapping[str, int]: ...
    @overload
    def padded(self, model: Model, sizes: Mapping[str, Number]) -> Mapping[str, Number]: ...
    def padded(self, model: Model, sizes: Mapping[str, Number]) -> Mapping[str, Number]:
        """The sizes of the dims that parameters share (`dim_sizes`), padded so that every split divides.

        `sizes` maps axes to chips; the result has the same kind of numbers.
        """
        split = dict.fromkeys("EFV", self.padded_axes) | {"K": self.k_axes, "G": self.g_axes}
        if model.latent is not None:
            split |= dict.fromkeys("QCD", self.e)
        own = dim_sizes(model)
        found = own | {dim: ceil_to(own[dim], product(sizes, axes)) for dim, axes in split.items()}
        if model.latent is not None:
            found["R"] = found["C"] + found["P"]
        return found

    def weights(self, model: Model) -> dict[str, str]:
        """Sharding of every parameter; those of a layer are stacked over layers in front."""
        rows = parameter_table(model)
        return {name: row.sharding(self.e, self.f, self.fg, self.fk) for name, row in rows.items()}


@dataclass(frozen=True)
class Layout:
    """One phase on one mesh; every field but `roles` and `storage` is a group of axes, outermost first."""

    roles: Roles
    storage: Storage
    e: str  # weights stay split on E
    f: str  # weights stay split on F: the axes of fg and fk in the order of the storage
    fg: str  # weights stay split on F and G
    fk: str  # weights stay split on F and K
    tokens_b: str  # tokens are split by sequence: the weights over these axes are gathered (or replicas)
    tokens_l: str  # tokens are split along the sequences, where these are too few
    attn_b: str  # attention splits sequences
    attn_l: str  # attention among the new tokens alone (a prefill) splits them as queries
    attn_s: str  # of attn_l, split the cached positions: a cache lies over them, and is attended to there
    attn_k: str  # attention splits key/value heads
    attn_g: str  # attention splits query heads within a group; keys and values are replicas over it

    @property
    def residual(self) -> str:
        """The residual between blocks: tokens over the gathered axes, E over all others."""
        return f"B_{self.tokens_b} L_{self.tokens_l} E_{self.e}{self.fg}{self.fk}"

    @property
    def cache(self) -> str:
        """One layer's values [B, K, S, D]; S is interleaved (`interleave.py`)."""
        return f"B_{self.attn_b} K_{self.attn_k} S_{self.attn_s} D"

    @property
    def keys(self) -> str:
        """One layer's keys [B, K, D, S]: as a product with queries reads them, so that they are never
        transposed."""
        return f"B_{self.attn_b} K_{self.attn_k} D S_{self.attn_s}"

    @property
    def latent_cache(self) -> str:
        """One layer's compressed keys and values [B, S, R]: rows for all heads, replicas over their axes."""
        return f"B_{self.attn_b} S_{self.attn_s} R"

    @property
    def batch_axes(self) -> str:
        return union(self.attn_b, self.tokens_b)

    @property
    def query_axes(self) -> str:
        """Axes that split the tokens of a prefill without a cache, for which a prompt is padded."""
        return union(self.attn_l, self.tokens_l)

    @property
    def new_axes(self) -> str:
        """Axes that split new tokens which attend to a cache."""
        return union(self.queries(cached=True), self.tokens_l)

    def queries(self, cached: bool) -> str:
        """Axes that split the queries of attention: to a cache, none of those its positions lie over."""
        return "".join(a for a in self.attn_l if not (cached and a in self.attn_s))


@dataclass(frozen=True)
class AxisUse:
    """What one phase does over one axis: its roles, and what these leave open until sizes are known."""

    name: str
    roles: AxisRoles
    tokens: str
    """What it splits of the tokens: "b" sequences, "l" query tokens, "" nothing."""
    heads: str
    """Which dim of the heads it splits where it splits heads: "k" or "g", else ""."""
    takes_sequences: bool
    """Whether attention splits sequences over it."""

    @property
    def attends(self) -> str:
        """What attention splits over it: "b", "l" (positions, or tokens as queries), "k", "g" or ""."""
        wanted = self.roles.attention
        if self.takes_sequences:
            return "b"
        if wanted == "context" or (wanted == "batch" and self.tokens == "l"):
            return "l"
        # projections are split by heads over an axis of F, and attention too where it has no sequences for it
        return self.heads if wanted == "heads" or (wanted == "batch" and self.roles.weights == "f") else ""


def arrange_storage(roles: Mapping[str, Sequence[AxisRoles]], k_axes: str, g_axes: str) -> Storage:
    """The one storage of some phases, whose roles are given for every axis: first those of decode.

    The weights lie where decode keeps them, so that decode never moves them. Within a dim the axes that must
    leave it (gathered in a phase, or traded for the batch by attention) come last, since only the innermost
    can leave without a permutation. `k_axes` and `g_axes` split heads in some phase.
    """
    stored = {axis: phases[0].stored for axis, phases in roles.items()}
    order = sorted(roles, key=lambda axis: sum(2 * r.splits_tokens + r.trades for r in roles[axis]))
    over_f = [a for a in order if stored[a] == "f"]
    return Storage(
        e="".join(a for a in order if stored[a] == "e"),
        f="".join(over_f),
        fg="".join(a for a in over_f if a not in k_axes),
        fk="".join(a for a in over_f if a in k_axes),
        k_axes=k_axes,
        g_axes=g_axes,
        padded_axes="".join(
            a for a in roles if stored[a] or any(not phase.splits_tokens for phase in roles[a])
        ),
        s_axes="".join(a for a in roles if any(phase.attention == "context" for phase in roles[a])),
    )


def kept_axes(roles: Mapping[str, AxisRoles], storage: Storage) -> list[str]:
    """The axes over which a phase keeps its weights split, first those of E; inside each as stored."""
    order = [*storage.e, *storage.fg, *storage.fk, *_loose(roles, storage)]
    return [a for dim in ("e", "f") for a in order if roles[a].weights == dim]


def token_axes(roles: Mapping[str, AxisRoles], storage: Storage) -> list[str]:
    """The axes over which a phase splits tokens, in the order in which they take sequences.

    The embedding reduces over the axes of F into the batch, then trades those of E for it.
    """
    order = [*_loose(roles, storage), *storage.fg, *storage.fk, *storage.e]
    return [a for a in order if roles[a].splits_tokens]


def _loose(axes: Iterable[str], storage: Storage) -> list[str]:
    """The axes over which the stored weights are replicas."""
    return [axis for axis in axes if axis not in storage.e + storage.f]


def arrange(axes: Sequence[AxisUse], storage: Storage, roles: Roles) -> Layout:
    """The layout of a phase from what it does over every axis; dims are split in the cheapest order."""
    of = {axis.name: axis for axis in axes}
    by_axis = {axis.name: axis.roles for axis in axes}
    kept, tokens = kept_axes(by_axis, storage), token_axes(by_axis, storage)
    over_f = [a for a in kept if of[a].roles.weights == "f"]
    # sequences that attention will trade for heads leave the batch, so they are its innermost axes
    by_b = sorted((a for a in tokens if of[a].tokens == "b"), key=lambda a: of[a].roles.attention != "batch")
    by_l = sorted((a for a in tokens if of[a].tokens == "l"), key=lambda a: not of[a].roles.trades)
    stay_b = [a for a in by_b if of[a].attends == "b"]
    stay_l = [a for a in by_l if of[a].attends == "l"]
    # after the axes already there, those that are reduced, then those that are traded
    more = [a for a in kept + tokens if a not in stay_b and a not in stay_l]
    heads = sorted(kept, key=lambda a: of[a].roles.weights != "f") + tokens
    return Layout(
        roles=roles,
        storage=storage,
        e="".join(a for a in kept if of[a].roles.weights == "e"),
        f="".join(a for a in (*storage.e, *storage.f, *_loose(of, storage)) if a in over_f),
        fg="".join(a for a in over_f if a not in storage.k_axes),
        fk="".join(a for a in over_f if a in storage.k_axes),
        tokens_b="".join(by_b),
        tokens_l="".join(by_l),
        attn_b="".join(stay_b + [a for a in more if of[a].attends == "b"]),
        attn_l="".join(stay_l + [a for a in more if of[a].attends == "l"]),
        attn_s="".join(a for a in of if of[a].roles.attention == "context"),
        attn_k="".join(a for a in heads if of[a].attends == "k"),
        attn_g="".join(a for a in heads if of[a].attends == "g"),
    )


A = TypeVar("A")
N = TypeVar("N", float, np.ndarray)


def fill(axes: Iterable[A], room: N, ways: Callable[[A, N], N]) -> list[N]:
    """How many ways each axis, in order, splits `room` items: what `ways` makes of it and the room left."""
    found: list[N] = []
    for axis in axes:
        found.append(ways(axis, room))
        room = room / found[-1]
    return found


def plan_storage(model: Model, mesh: Mesh, decode: Roles, prefill: Roles) -> Storage:
    """The one storage of both phases on a mesh; see `arrange_storage`."""
    phases = decode.by_axis, prefill.by_axis
    roles = {axis: tuple(phase[axis] for phase in phases) for axis in mesh.axes}
    over_heads = sorted(
        (axis for axis in mesh.axes if splits_heads(*roles[axis])),
        key=lambda axis: (*prefers_k(*roles[axis]), -mesh.size[axis]),
    )
    k_axes = assign_heads(model, mesh, over_heads)
    return arrange_storage(roles, k_axes, "".join(a for a in over_heads if a not in k_axes))


def resolve(roles: Roles, storage: Storage, mesh: Mesh, batch: int, queries: int) -> Layout:
    """The layout of one phase for `batch` sequences of `queries` new tokens each.

    A gathered axis splits the batch while there are sequences enough, then the query tokens, then nothing
    (the batch is kept whole). Attention over an axis the batch is too small for falls back to the split
    projections have there: heads, query tokens, or none. Context never does: what is too short is padded.
    """
    by_axis, size = roles.by_axis, mesh.size

    def taken(axes: list[str], room: float) -> list[str]:
        """The axes, in order, that as a whole still divide `room` items into shards of at least one."""
        ways = fill(axes, room, lambda axis, left: size[axis] if size[axis] <= left else 1)
        return [axis for axis, way in zip(axes, ways, strict=True) if way == size[axis]]

    split = token_axes(by_axis, storage)
    by_b = taken(split, batch)
    by_l = taken([a for a in split if a not in by_b], queries)
    over_batch = [a for a in kept_axes(by_axis, storage) + split if by_axis[a].attention == "batch"]
    stay = [a for a in over_batch if a in by_b]
    more = taken([a for a in over_batch if a not in by_b], batch / product(size, "".join(stay)))
    axes = [
        AxisUse(
            name=a,
            roles=by_axis[a],
            tokens="b" if a in by_b else "l" if a in by_l else "",
            heads="k" if a in storage.k_axes else "g" if a in storage.g_axes else "",
            takes_sequences=a in stay + more,
        )
        for a in mesh.axes
    ]
    return arrange(axes, storage, roles)
