"""The pair of layouts that takes least memory: where nothing fits, the one that comes closest."""

from __future__ import annotations

import numpy as np

from partita.planner.exact import Exact
from partita.planner.pair import Pair
from partita.planner.tables import Tables, by_storage


def nearest_pair(tables: Tables) -> Pair | None:
    """The pair of layouts that lacks least memory, or has most to spare; None where no row is a layout."""
    return next(iter(nearest_pairs(tables)), None)


def nearest_pairs(tables: Tables) -> list[Pair]:
    """Pairs of layouts on several storages, that which lacks least memory first, at the smallest batch."""
    exact = Exact(tables)
    written = np.where(np.isfinite(tables.decode.seconds), tables.decode.held_bytes, np.inf)
    read = np.where(np.isfinite(tables.prefill.seconds), tables.prefill.held_bytes, np.inf)
    slots = np.where(np.isfinite(written), tables.decode.kv_bytes, np.inf)
    groups, b = [], 0
    for decode, prefill in by_storage(tables):
        # beside the weights and the larger of the caches, roughly: the exact price decides
        kv = tables.prefill.kv_bytes[prefill]
        need = read[prefill] - kv + np.maximum(kv, slots[decode, b].min())
        row, pb = np.unravel_index(int(need.argmin()), need.shape)
        for d in {int(written[decode, b].argmin()), int(slots[decode, b].argmin())}:
            total = max(float(written[decode[d], b]), float(need[row, pb]))
            groups.append((total, int(decode[d]), b, int(prefill[row]), int(pb)))
    found = [
        pair
        for total, *places in sorted(groups)[:_STORAGES]
        if np.isfinite(total)
        for pair in exact.pairs(*places)
    ]
    return sorted(found, key=lambda pair: float(pair.fullest[1].total))


_STORAGES = 6
"""How many storages are priced exactly, of those whose rows take least."""
