"""Which of the chips that split heads split K, the key/value heads, and which G, the queries of each.

Does for all rows of the space what `sharding.padding.assign_heads` does for one mesh. Knows no prices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from partita.planner.space import AxisRoles, Counts, Topology
from partita.sharding.padding import ceil_to
from partita.specs.model import Model


class Part(NamedTuple):
    """Chips of a slot in one role, `size` [rows], that split the same dim of the heads, or none ("")."""

    segment: int
    kind: AxisRoles
    heads: str
    size: np.ndarray


def cut_heads(model: Model, topology: Topology, kinds: Sequence[AxisRoles], counts: Counts) -> list[Part]:
    """The roles of all slots, those that split heads cut in K and G as `assign_heads` does."""
    played = np.any(counts > 1, axis=0)
    roles = [(s, c) for c in range(len(kinds)) for s in range(len(topology.segments)) if played[s, c]]
    cut = sorted(
        (role for role in roles if kinds[role[1]].splits_heads), key=lambda r: _prefers_k(r[0], kinds[r[1]])
    )
    sizes = [counts[:, s, c].astype(int) for s, c in cut]
    whole = any(topology.segments[s].whole for s, _ in cut)
    shares = dict(zip(cut, (_whole_shares if whole else _shares)(model, sizes), strict=True))
    found = []
    for s, c in roles:
        k = shares.get((s, c))
        if k is None:
            found.append(Part(s, kinds[c], "", counts[:, s, c]))
        else:
            found += [Part(s, kinds[c], "k", k), Part(s, kinds[c], "g", counts[:, s, c] / k)]
    return found


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
            ways = itertools.product(*((n, 1) if n > 1 else (1,) for n in row))
            total = math.prod(row)
            distinct[row] = min(ways, key=lambda k: _padded(model.kv_heads, model.group, math.prod(k), total))
        taken[i] = distinct[row]
    return list(taken.T)


@lru_cache
def _best_k(kv: int, group: int, chips: int) -> int:
    """Of the chips that split heads, how many had best split K."""
    return min((d for d in range(1, chips + 1) if chips % d == 0), key=lambda k: _padded(kv, group, k, chips))


def _padded(kv: int, group: int, k: int, chips: int) -> tuple[int, int, int]:
    """Padded heads, then K heads of a chip, then of all; K over `k` of the chips and G over the others."""
    over_k = ceil_to(kv, k)
    return over_k * ceil_to(group, chips // k), over_k // k, over_k


def _prefers_k(segment: int, kind: AxisRoles) -> tuple:
    """Sorts by who splits K first, as `plan_storage` does of a mesh that `join` made."""
    attention, weights = kind.attention, kind.weights
    wish = attention != "heads", attention == "batch", weights != "f", kind.splits_tokens
    return *wish, segment, ("e", "f", "").index(kind.stored)
