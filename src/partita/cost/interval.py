"""How far an estimate may be off: an interval from held-out error, and what of it is extrapolated.

Within the region a profile was fitted to, 90% of measurements whose whole setting was left out of the fit lie
within the interval (split conformal prediction on the size of the logarithmic error). Outside it is wider by
half for every doubling of a quantity beyond the region and for every phase or layout that the fit had not
seen: a convention, checked by `Profile.coverage`. Knows nothing about how the estimate was made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from partita.specs.profile import Profile, Range, Region
from partita.specs.units import format_count

COVERAGE = 0.9
_FEWEST = 0.25
"""Logarithmic half-width taken at least where too few measurements were left out to give a quantile."""


@dataclass(frozen=True)
class Interval:
    """Factors on an estimate: where 90 of 100 times lie, and sentences on what was extrapolated."""

    low: float
    high: float
    extrapolated: tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """What an estimate was made for, as `Region` counts it."""

    parameters: float
    chips: float
    tokens: float
    context: float
    phase: str
    layout: str


def interval(profile: Profile, asked: Asked) -> Interval:
    """The interval of an estimate by `profile`."""
    beyond, sentences = outside(profile.region, asked)
    width = half_width(profile.residuals, held_out=profile.held_out) * (1 + beyond / 2)
    return Interval(math.exp(-width), math.exp(width), sentences)


def outside(region: Region, asked: Asked) -> tuple[float, tuple[str, ...]]:
    """How many doublings something lies outside what was fitted to, of all quantities, and sentences."""
    beyond, sentences = 0.0, []
    for name, unit in (
        ("parameters", "parameters of the model"),
        ("chips", "chips"),
        ("tokens", "tokens a step"),
        ("context", "positions of context"),
    ):
        fitted: Range | None = getattr(region, name)
        value: float = getattr(asked, name)
        if fitted is None or fitted[0] <= value <= fitted[1]:
            continue
        end = fitted[0] if value < fitted[0] else fitted[1]
        beyond += abs(math.log2(value / end))
        sentences.append(f"{_count(value)} {unit}, fitted to {_span(fitted)}")
    for name, seen in (("phase", region.phases), ("layout", region.layouts)):
        value = getattr(asked, name)
        if seen and value not in seen:
            beyond += 1
            sentences.append(f"{name} {value}, fitted to {', '.join(seen)}")
    return beyond, tuple(sentences)


def half_width(residuals: Sequence[float], coverage: float = COVERAGE, held_out: int | None = None) -> float:
    """The size of logarithmic error that a share `coverage` of new measurements stays within.

    Of n held-out errors the ceil(coverage (n + 1))-th smallest (split conformal prediction: Lei et al. 2018,
    arXiv 1604.04173); where n is too small for that, twice the largest, at least 0.25. `held_out`: n, where
    `residuals` are sizes at equal steps from the least to the largest; between them it is interpolated.
    """
    sizes = sorted(map(abs, residuals))
    count = len(sizes) if held_out is None else held_out
    place = math.ceil(coverage * (count + 1))
    if place > count:
        return max(_FEWEST, 2 * sizes[-1]) if sizes else 2 * _FEWEST
    if held_out is None:
        return sizes[place - 1]
    step, part = divmod((place - 1) / (count - 1) * (len(sizes) - 1), 1)
    low, high = sizes[int(step)], sizes[min(int(step) + 1, len(sizes) - 1)]
    return low + part * (high - low)


def _span(fitted: Range) -> str:
    low, high = map(_count, fitted)
    return low if low == high else f"{low} to {high}"


def _count(number: float) -> str:
    return format_count(number)
