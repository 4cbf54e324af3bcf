"""Numbers on a grid, looked up one by one: straight lines between neighbours, the last ones going on.

Tables are made with NumPy in one go and asked in plain Python, where a simulation spends its time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def grid(longest: int, points: int, least: int = 1) -> list[int]:
    """Two or more whole numbers from `least` to at least `longest`, about `points` to each doubling."""
    doublings = max(1.0, np.log2(max(longest, least + 1) / least))
    found = least * 2.0 ** np.linspace(0, doublings, int(np.ceil(doublings * points)) + 1)
    whole = sorted({round(x) for x in found} | {least, max(longest, least + 1)})
    return [int(x) for x in whole]


class Curve:
    """A function of one number, known at ascending `x` [n], n at least 2: `values` [n]."""

    __slots__ = ("x", "y")

    def __init__(self, x: Sequence[float], values: Floats):
        self.x, self.y = list(x), values.tolist()

    def __call__(self, x: float) -> float:
        grid, y = self.x, self.y
        i = bisect_right(grid, x, 1, len(grid) - 1)
        low = grid[i - 1]
        return y[i - 1] + (y[i] - y[i - 1]) * (x - low) / (grid[i] - low)


class Surface:
    """A function of two numbers, known at ascending `x` [n] and `y` [m], 2 or more each: `values` [n, m]."""

    __slots__ = ("rows", "x", "y")

    def __init__(self, x: Sequence[float], y: Sequence[float], values: Floats):
        self.x, self.y, self.rows = list(x), list(y), values.tolist()

    def __call__(self, x: float, y: float) -> float:
        across, along = self.x, self.y
        i = bisect_right(across, x, 1, len(across) - 1)
        j = bisect_right(along, y, 1, len(along) - 1)
        part = (y - along[j - 1]) / (along[j] - along[j - 1])
        low, high = self.rows[i - 1], self.rows[i]
        first = low[j - 1] + (low[j] - low[j - 1]) * part
        second = high[j - 1] + (high[j] - high[j - 1]) * part
        return first + (second - first) * (x - across[i - 1]) / (across[i] - across[i - 1])


class Rows:
    """A curve for each whole number from 0 to n - 1: `values` [n, m] at ascending `y` [m]."""

    __slots__ = ("rows", "y")

    def __init__(self, y: Sequence[float], values: Floats):
        self.y, self.rows = list(y), values.tolist()

    def __call__(self, x: int, y: float) -> float:
        along, row = self.y, self.rows[x]
        j = bisect_right(along, y, 1, len(along) - 1)
        low = along[j - 1]
        return row[j - 1] + (row[j] - row[j - 1]) * (y - low) / (along[j] - low)
