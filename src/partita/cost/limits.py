"""The largest number for which something still fits. Knows nothing about what is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def largest(fits: Callable[[int], bool], starts: Iterable[int]) -> int:
    """The largest whole number that fits, 0 if none does.

    Memory grows with the number from one of `starts` to the next, but a layout may split more from there
    on: found in the last of these ranges whose start fits, by doubling and bisection.
    """
    ranges = sorted(starts)
    low = next((start for start in reversed(ranges) if fits(start)), 0)
    if not low:
        return 0
    high = min((start for start in ranges if start > low), default=0)
    if not high:
        high = 2 * low
        while high < 2**41 and fits(high):
            low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
