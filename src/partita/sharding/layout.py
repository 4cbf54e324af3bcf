"""Layouts: how the weights are stored, and how one phase uses them on a mesh of known sizes.

`Storage` is shared by both phases: one copy of the weights, split `E_x F_yz`. A `Layout` says, for one
phase and batch, which axes stay on E and F, which split tokens instead (their weights are gathered before
use), and how attention is split. Both hold only names; sizes enter through `Storage.padded`.

Query heads are written as two dims, H = K G: K key/value heads, each with a group of G query heads. An
axis that splits heads splits either K or G, whichever pads less.
"""

from __future__ import annotations

from dataclasses import dataclass

from partita.sharding.mesh import Mesh
from partita.sharding.padding import assign_heads, ceil_to, latent_sizes, product, union
from partita.sharding.roles import Roles
from partita.specs.model import Model
from partita.specs.parameters import parameter_table


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

    def padded(self, model: Model, sizes) -> dict:
        """Sizes of the dims of weights [E F K G D V] and of latent attention, padded so that they divide.

        `sizes` maps axes to ints or NumPy arrays; the result has the same kind of numbers.
        """
        whole = product(sizes, self.padded_axes)
        found = {
            "E": ceil_to(model.d_model, whole),
            "F": ceil_to(model.d_ff, whole),
            "V": ceil_to(model.vocabulary, whole),
            "K": ceil_to(model.kv_heads, product(sizes, self.k_axes)),
            "G": ceil_to(model.group, product(sizes, self.g_axes)),
            "D": model.head_dim,
        }
        if model.latent is not None:
            found |= latent_sizes(model.latent, product(sizes, self.e))
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
        """Between blocks: tokens over the gathered axes, E over all others."""
        return f"B_{self.tokens_b} L_{self.tokens_l} E_{self.e}{self.fg}{self.fk}"

    @property
    def cache(self) -> str:
        """One layer's values [B, K, S, D]; S is dealt out (`deal.py`)."""
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


def plan_storage(model: Model, mesh: Mesh, decode: Roles, prefill: Roles) -> Storage:
    """The one storage of both phases: where decode keeps its weights, so that decode never moves them.

    Within a dim the axes that must leave it (gathered in a phase, or traded for the batch by attention)
    come last, since only the innermost can leave without a permutation.
    """
    phases = (decode, prefill)
    stored = {axis: role[0] for axis, role in decode.weights if role != "replica"}
    usage = [{axis: _usage(role) for axis, role in phase.weights} for phase in phases]
    attends = [dict(phase.attends) for phase in phases]

    def leaves(axis: str) -> int:
        gathered = sum(phase[axis] == "tokens" for phase in usage)
        traded = sum(phase[axis] in ("batch", "context") for phase in attends)
        return 2 * gathered + traded

    order = sorted(mesh.axes, key=leaves)
    splits_heads = [
        axis
        for axis in mesh.axes
        if stored.get(axis) == "f"
        or any(phase[axis] == "f" for phase in usage)
        or any(phase[axis] == "heads" for phase in attends)
    ]
    # of assignments that are as good, K goes where attention splits heads, so that the cache is split, and
    # last where it splits sequences, which G can be summed into; none hangs on the order of the mesh
    splits_heads.sort(
        key=lambda axis: (
            *(phase[axis] != "heads" for phase in attends),
            *(phase[axis] == "batch" for phase in attends),
            usage[0][axis] != "f",
            usage[0][axis] == "tokens",
            -mesh.size[axis],
        )
    )
    k_axes = assign_heads(model, mesh, splits_heads)
    return Storage(
        e="".join(a for a in order if stored.get(a) == "e"),
        f="".join(a for a in order if stored.get(a) == "f"),
        fg="".join(a for a in order if stored.get(a) == "f" and a not in k_axes),
        fk="".join(a for a in order if stored.get(a) == "f" and a in k_axes),
        k_axes=k_axes,
        g_axes="".join(a for a in splits_heads if a not in k_axes),
        padded_axes="".join(
            a for a in mesh.axes if a in stored or any(phase[a] != "tokens" for phase in usage)
        ),
        s_axes="".join(a for a in mesh.axes if any(phase[a] == "context" for phase in attends)),
    )


def resolve(roles: Roles, storage: Storage, mesh: Mesh, batch: int, queries: int) -> Layout:
    """The layout of one phase for `batch` sequences of `queries` new tokens each.

    A gathered axis splits the batch while there are sequences enough, then the query tokens, then nothing
    (the batch is kept whole). Attention over an axis the batch is too small for falls back to the split
    projections have there: heads, query tokens, or none. Context never does: what is too short is padded.
    """
    size, usage, attends = mesh.size, {a: _usage(r) for a, r in roles.weights}, dict(roles.attends)
    loose = "".join(a for a in mesh.axes if a not in storage.e + storage.f)
    heads_order = storage.fg + storage.fk
    order = storage.e + heads_order + loose
    kept = {kind: [a for a in order if usage[a] == kind] for kind in ("e", "f")}
    # the embedding reduces over the axes of f into the batch, then trades those of e for it: this order
    tokens = [a for a in loose + heads_order + storage.e if usage[a] == "tokens"]
    tokens_b = _fill(tokens, size, batch, taken=1)
    tokens_l = _fill([a for a in tokens if a not in tokens_b], size, queries, taken=1)
    # sequences that attention will trade for heads leave the batch, so they are its innermost axes
    tokens_b = "".join(sorted(tokens_b, key=lambda a: attends[a] != "batch"))
    tokens_l = "".join(sorted(tokens_l, key=lambda a: attends[a] not in ("batch", "context")))

    split: dict[str, str] = {a: attends[a] for a in mesh.axes}
    by_cost = kept["e"] + kept["f"] + tokens  # after the axes already there, those reduced, then traded
    stay_b = [a for a in tokens_b if split[a] == "batch"]
    wanted = [a for a in by_cost if split[a] == "batch" and a not in tokens_b]
    more_b = _fill(wanted, size, batch, taken=product(size, "".join(stay_b)))
    stay_l = [a for a in tokens_l if split[a] in ("batch", "context") and a not in more_b]
    more_l = [a for a in by_cost if split[a] == "context" and a not in tokens_l]
    attn_b, attn_l = "".join(stay_b) + more_b, "".join(stay_l + more_l)
    heads = [
        a
        for a in kept["f"] + kept["e"] + tokens
        if split[a] == "heads" or (usage[a] == "f" and split[a] != "none" and a not in attn_b + attn_l)
    ]
    return Layout(
        roles=roles,
        storage=storage,
        e="".join(kept["e"]),
        f="".join(a for a in storage.e + storage.f + loose if a in kept["f"]),
        fg="".join(a for a in kept["f"] if a not in storage.k_axes),
        fk="".join(a for a in kept["f"] if a in storage.k_axes),
        tokens_b=tokens_b,
        tokens_l=tokens_l,
        attn_b=attn_b,
        attn_l=attn_l,
        attn_s="".join(a for a in mesh.axes if split[a] == "context"),
        attn_k="".join(a for a in heads if a in storage.k_axes),
        attn_g="".join(a for a in heads if a in storage.g_axes),
    )


def _usage(role: str) -> str:
    """How a phase uses an axis: weights stay split on "e" or "f", or it splits "tokens"."""
    return role if role in ("e", "f") else "tokens"


def _fill(axes: list[str], size: dict[str, int], room: int, taken: int) -> str:
    """The axes, in order, that still divide `room` items into shards of at least one."""
    found = ""
    for axis in axes:
        if taken * size[axis] <= room:
            found += axis
            taken *= size[axis]
    return found
