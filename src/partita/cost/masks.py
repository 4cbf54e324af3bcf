"""Which part of an attention product a mask keeps, in closed form. Knows nothing about chips or formats.

The queries are the last of the positions: query number i of L sees the positions up to S - L + i, of these
under a window of w the last w only.
"""

from __future__ import annotations

import numpy as np

from partita.cost.ledger import Number


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
