"""Many layouts of one phase as one: every role of every segment is a mesh axis, of size 1 where it is idle.

Since an axis of one chip costs nothing, one pass of the program over this layout prices all rows of a space.
Axes here have names of their own, one letter of any alphabet, and sizes that are arrays [rows, batches]. Only
sizes are worked out here: what axes split, and in which order, follows the rules of `sharding.layout`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from partita.cost.links import Links
from partita.planner.space import Segment, Space, Topology
from partita.sharding.layout import AxisUse, Layout, arrange, arrange_storage, fill
from partita.sharding.padding import padded_heads, whole_shares
from partita.sharding.roles import AxisRoles, Roles, prefers_k, splits_heads
from partita.specs.model import Model

_NAMES = [chr(code) for code in range(ord("a"), 0x500) if chr(code).islower()]
_NO_ROLES = Roles("", "", (), ())


@dataclass(frozen=True)
class Axis(AxisUse):
    """One axis of all rows: chips of a segment, and their number in every row at every batch."""

    segment: int
    sizes: np.ndarray
    """[rows, batches], either of them 1 where it does not matter."""

    @property
    def splits(self) -> str:
        """What it splits of tokens and heads, and "t" where attention trades other tokens for sequences."""
        trades = self.takes_sequences and self.roles.splits_tokens and self.tokens != "b"
        return self.tokens + self.heads + "t" * trades


@dataclass(frozen=True)
class AxisSet:
    """The axes of all rows, and which rows are layouts at which batch [rows, batches]."""

    axes: tuple[Axis, ...]
    legal: np.ndarray

    def sizes(self) -> dict[str, np.ndarray]:
        return {axis.name: axis.sizes for axis in self.axes}


def batched_axes(space: Space, batch: np.ndarray, queries: int, context: int, *, enough: bool) -> AxisSet:
    """The axes of every row for the batches [1, batches] of `queries` new tokens each.

    A row is no layout at a batch where a gathered axis has fewer sequences and query tokens than chips, or
    attention fewer sequences or positions; replicas without tokens to split stand idle. `enough`: only where
    there is a sequence for every chip that tokens are split over, so that no split depends on the batch.
    """
    shape = (len(space.counts), batch.shape[1])
    legal = np.ones(shape, bool)
    names, axes = iter(_NAMES), []

    def add(share: Share, tokens: str, sizes: np.ndarray, trades: bool = False) -> None:
        if (sizes > 1).any():
            over_batch = share.roles.attention == "batch" and (not share.roles.splits_tokens or tokens == "b")
            takes = over_batch or trades
            axes.append(Axis(next(names), share.roles, tokens, share.heads, takes, share.segment, sizes))

    def ways(part: tuple[Share, np.ndarray], room: np.ndarray) -> np.ndarray:
        return _largest_divisor(space.topology.segments[part[0].segment], part[1], room)

    split: list[tuple[Share, np.ndarray]] = []
    for share in sorted(share_heads(space), key=_takes_first):
        if share.roles.splits_tokens:
            split.append((share, share.size[:, None]))
        else:
            add(share, "", share.size[:, None])
    if enough:
        by_b, by_l = [size for _, size in split], [np.ones((1, 1))] * len(split)
    else:
        by_b = fill(split, batch * np.ones((shape[0], 1)), ways)
        rest = [(share, size / over_b) for (share, size), over_b in zip(split, by_b, strict=True)]
        by_l = fill(rest, np.full(shape, queries, dtype=float), ways)
    others: list[tuple[Share, str, np.ndarray]] = []  # that attention may yet split sequences over
    for (share, size), over_b, over_l in zip(split, by_b, by_l, strict=True):
        idle = size / over_b / over_l
        if share.roles.stored:
            legal &= idle == 1
        add(share, "b", over_b)
        for tokens, left in (("l", over_l), ("", idle)):
            if share.roles.attention == "batch" and (left > 1).any():
                others.append((share, tokens, left))
            else:
                add(share, tokens, left)
    room = batch / _taken([axis for axis in axes if axis.attends == "b"])
    traded = fill([(share, left) for share, _, left in others], room, ways)
    for (share, tokens, left), over_b in zip(others, traded, strict=True):
        add(share, tokens, over_b, trades=True)
        add(share, tokens, left / over_b)
    axes.sort(key=_takes_first)
    legal &= _taken([axis for axis in axes if axis.tokens == "b"]) <= batch
    for what, room in (("b", batch), ("l", context if queries == 1 else queries)):
        legal &= _taken([axis for axis in axes if axis.attends == what]) <= room
    return AxisSet(tuple(axes), legal)


def layout(axis_set: AxisSet) -> Layout:
    """The layout of one phase over all axes, arranged as that of a single mesh is."""
    storage = arrange_storage(
        {axis.name: (axis.roles,) for axis in axis_set.axes},
        "".join(axis.name for axis in axis_set.axes if axis.heads == "k"),
        "".join(axis.name for axis in axis_set.axes if axis.heads == "g"),
    )
    return arrange(axis_set.axes, storage, _NO_ROLES)


def links(topology: Topology, axis_set: AxisSet) -> Links:
    """How many chips of each axis lie on each level."""
    parts = {}
    for axis in axis_set.axes:
        segment = topology.segments[axis.segment]
        if segment.whole:
            whole = axis.sizes == segment.size
            parts[axis.name] = tuple(np.where(whole, part, 1) for part in segment.parts)
        else:
            parts[axis.name] = tuple(axis.sizes if part > 1 else 1 for part in segment.parts)
    return Links(topology.levels, parts)


def _takes_first(share: Share | Axis) -> tuple:
    """Sorts by who takes sequences first, as `token_axes` does: replicas, then what F stores, then E."""
    stored, trades = share.roles.stored, share.roles.trades
    if (
        not stored
    ):  # of one segment their order is free: first whose sequences attention leaves where they are
        return 0, share.segment, share.roles.attention != "batch"
    return "fe".index(stored) + 1, stored == "f" and share.heads == "k", trades, share.segment


def _taken(axes: Sequence[Axis]) -> np.ndarray:
    """Into how many parts these axes split what they split, [rows, batches]."""
    taken = np.ones((1, 1))
    for axis in axes:
        taken = taken * axis.sizes
    return taken


def _largest_divisor(segment: Segment, size: np.ndarray, room: np.ndarray) -> np.ndarray:
    """For each size, its largest divisor that is at most `room` [rows, batches]."""
    found = np.ones(np.broadcast_shapes(size.shape, room.shape))
    # few rows give this role any chips
    playing = np.nonzero(np.broadcast_to(size > 1, found.shape).any(axis=1))[0]
    size, room = (np.broadcast_to(n, found.shape)[playing] for n in (size, room))
    most = np.ones_like(size)
    for divisor in segment.divisors[1:]:
        most = np.where((size % divisor == 0) & (divisor <= room), divisor, most)
    found[playing] = most
    return found


# -- heads: which chips split K, the key/value heads, and which G, the queries of each ------------------


class Share(NamedTuple):
    """Chips of a segment in one role, `size` [rows], that split the same dim of the heads, or none ("")."""

    segment: int
    roles: AxisRoles
    heads: str
    size: np.ndarray


def share_heads(space: Space) -> list[Share]:
    """The roles of all segments; those that split heads are cut in K and G by the rule of `padded_heads`."""
    segments, counts = space.topology.segments, space.counts
    played = np.any(counts > 1, axis=0)
    parts = [
        (s, c, roles) for c, roles in enumerate(space.roles) for s in range(len(segments)) if played[s, c]
    ]
    cut = sorted((part for part in parts if splits_heads(part[2])), key=_splits_k_first)
    sizes = [counts[:, s, c].astype(int) for s, c, _ in cut]
    whole = any(segments[s].whole for s, _, _ in cut)
    shares = dict(zip(cut, (_whole_shares if whole else _shares)(space.model, sizes), strict=True))
    found = []
    for part in parts:
        (s, c, roles), over_k = part, shares.get(part)
        if over_k is None:
            found.append(Share(s, roles, "", counts[:, s, c]))
        else:
            found += [Share(s, roles, "k", over_k), Share(s, roles, "g", counts[:, s, c] / over_k)]
    return found


def _splits_k_first(part: tuple[int, int, AxisRoles]) -> tuple:
    """Sorts by who splits K first, as `plan_storage` does for a mesh that the rows are joined to."""
    segment, _, roles = part
    return *prefers_k(roles), segment, ("e", "f", "").index(roles.stored)


def _shares(model: Model, sizes: Sequence[np.ndarray]) -> list[np.ndarray]:
    """How many chips of each role split K, [rows] each: the first takes what it can of the best number."""
    if not sizes:
        return []
    totals, rows = np.unique(math.prod(sizes), return_inverse=True)
    left = np.array([_best_k(model.kv_heads, model.group, int(total)) for total in totals])[rows]
    found = []
    for size in sizes:
        found.append(np.gcd(size, left))
        left = left // found[-1]
    return found


def _whole_shares(model: Model, sizes: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The same where a role splits K with all its chips or with none."""
    if not sizes:
        return []
    every, distinct = np.stack(sizes, axis=1), {}
    taken = np.ones_like(every)
    for i, row in enumerate(map(tuple, every.tolist())):
        if row not in distinct:
            distinct[row] = whole_shares(model.kv_heads, model.group, row)
        taken[i] = distinct[row]
    return list(taken.T)


@lru_cache
def _best_k(kv: int, group: int, chips: int) -> int:
    """How many of the chips that split heads had best split K."""
    ways = (d for d in range(1, chips + 1) if chips % d == 0)
    return min(ways, key=lambda k: padded_heads(kv, group, k, chips // k))
