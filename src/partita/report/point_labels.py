"""Where labels beside points find room: greedily, each as near to its point as nothing else is covered.

Works on plain coordinates in dots, without matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_CHARACTER = (0.6, 1.15)
"""Mean width and height of a character over the font size."""


@dataclass(frozen=True)
class Label:
    """A text to be written beside a point."""

    text: str
    point: tuple[float, float]  # dots
    gap: float = 3.0  # kept free between the two, in the unit of the font size


@dataclass(frozen=True)
class Box:
    """A rectangle of the page, in dots."""

    left: float
    bottom: float
    right: float
    top: float

    def covers(self, other: Box) -> bool:
        """Whether the two have some area in common."""
        apart = other.left >= self.right or other.right <= self.left
        return not apart and other.bottom < self.top and other.top > self.bottom

    def within(self, other: Box) -> bool:
        """Whether no part of it is outside the other."""
        across = other.left <= self.left and self.right <= other.right
        return across and other.bottom <= self.bottom and self.top <= other.top


def along(line: Sequence[tuple[float, float]], step: float = 5.0) -> list[tuple[float, float]]:
    """The points of a line, and others between them no further apart than `step` dots."""
    found = list(line[:1])
    for (x0, y0), (x1, y1) in pairwise(line):
        parts = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / step))
        found += [(x0 + (x1 - x0) * i / parts, y0 + (y1 - y0) * i / parts) for i in range(1, parts + 1)]
    return found


def place(
    labels: Sequence[Label],
    points: Sequence[tuple[float, float]],
    taken: Sequence[Box],
    frame: Box,
    scale: float,
    font_size: float,
) -> list[tuple[float, float] | None]:
    """Offset of each label's lower left corner from its point; None where no place is free.

    points: those that are drawn and may not be covered; taken: boxes that are not free; frame: the box that
    labels stay in. All are in dots, with `scale` dots to a unit of offset and of `font_size`.
    """
    occupied = list(taken) + [Box(x - 1, y - 1, x + 1, y + 1) for x, y in points]
    found: list[tuple[float, float] | None] = []
    for label in labels:
        width, height = _CHARACTER[0] * font_size * len(label.text), _CHARACTER[1] * font_size
        for offset in _offsets(width, height, label.gap):
            x, y = (at + scale * by for at, by in zip(label.point, offset, strict=True))
            box = Box(x, y, x + scale * width, y + scale * height)
            if box.within(frame) and not any(box.covers(other) for other in occupied):
                occupied.append(box)
                found.append(offset)
                break
        else:
            found.append(None)
    return found


def _offsets(width: float, height: float, gap: float) -> list[tuple[float, float]]:
    """Right of the point and above, right, above, left and above, below right, below, left."""
    return [
        (gap, gap / 2),
        (gap + 1, -height / 2),
        (-width / 2, gap + 1),
        (-width - gap, gap / 2),
        (gap, -height - gap / 2),
        (-width / 2, -height - gap - 1),
        (-width - gap, -height - gap / 2),
        (-width - gap - 1, -height / 2),
    ]
