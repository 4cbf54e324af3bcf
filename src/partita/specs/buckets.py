"""Few whole requests that stand for many, with the same mean lengths.

Knows nothing about what the columns mean, except that each column has a smallest legal value of its own,
which no representative falls below.
"""

from __future__ import annotations

import heapq

import numpy as np

from partita.specs.lengths import Floats, Integers


def merge(rows: Integers, weight: Floats) -> tuple[Integers, Floats]:
    """Equal rows of `rows` [n, columns] as one, their weights [n] added; in ascending order."""
    distinct, position = np.unique(rows, axis=0, return_inverse=True)
    summed = np.zeros(len(distinct))
    np.add.at(summed, position.reshape(-1), weight)
    return distinct, summed


def representatives(rows: Integers, weight: Floats, most: int) -> tuple[Integers, Floats]:
    """At most `most` rows of whole numbers, with weights, that keep the weighted mean of every column.

    rows [n, columns], weight [n]. `most` must be more than the number of columns. Rows that differ no more
    than that allows are only merged. Else they are put in groups of similar rows, and each group is
    represented by a row that differs from the group's mean by less than one in every column (two, for one
    group): what rounding down leaves is carried to the next heavier group, and the heaviest is represented by
    up to columns + 1 neighbouring rows whose mean is what is left, so that nothing is lost.
    """
    rows, weight = merge(rows, weight)
    if len(rows) <= most:
        return rows, weight
    columns = rows.shape[1]
    groups = sorted(_groups(rows, weight, most - columns), key=lambda group: weight[group].sum())
    found, weights, carry = [], [], np.zeros(columns)
    for group in groups:
        inside, shares = rows[group], weight[group]
        total = shares.sum()
        # a carry is less than one unit of a lighter group, so less than one unit of this group
        mean = np.clip(shares @ inside / total, inside.min(axis=0), inside.max(axis=0)) + carry / total
        if group is groups[-1]:
            corners, parts = _corners(mean)
            found.extend(np.maximum(corners, inside.min(axis=0)))
            weights.extend(total * parts)
        else:
            nearest = np.maximum(np.floor(mean + 1e-9), inside.min(axis=0))
            carry = (mean - nearest) * total
            found.append(nearest)
            weights.append(total)
    return merge(np.array(found).astype(np.int64), np.array(weights))


def _groups(rows: Integers, weight: Floats, most: int) -> list[Integers]:
    """Positions in `most` groups: the group with the largest weighted variance is cut at its mean, again
    and again, across the column that varies most."""
    heap = [_spread(rows, weight, np.arange(len(rows)), 0)]
    while len(heap) < most:
        _, _, column, cut, group = heapq.heappop(heap)
        low = rows[group, column] <= cut
        for part in (group[low], group[~low]):
            heapq.heappush(heap, _spread(rows, weight, part, int(part[0])))
    return [group for *_, group in heap]


def _spread(rows: Integers, weight: Floats, group: Integers, tie: int) -> tuple:
    """What a group is sorted by (most weighted variance first, `tie` where equal), and where to cut it."""
    inside, shares = rows[group], weight[group]
    mean = shares @ inside / shares.sum()
    variance = shares @ (inside - mean) ** 2
    column = int(np.argmax(variance))
    cut = min(mean[column], inside[:, column].max() - 1)  # something is left on both sides
    return -variance[column], tie, column, cut, group


def _corners(point: Floats) -> tuple[Floats, Floats]:
    """Whole points around `point` [columns] and weights (sum 1) with which they have it as their mean.

    From the corner below, one column after another steps up, the largest fraction first: the corners of the
    simplex that holds the point (Kuhn 1960).
    """
    below = np.floor(point)
    fraction = point - below
    order = np.argsort(-fraction, kind="stable")
    steps = np.vstack([np.zeros(len(point)), np.cumsum(np.eye(len(point))[order], axis=0)])
    heights = np.concatenate([[1.0], fraction[order], [0.0]])
    parts = heights[:-1] - heights[1:]
    kept = parts > 1e-12
    return (below + steps)[kept], parts[kept] / parts[kept].sum()
