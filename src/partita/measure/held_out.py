"""What a fit says of measurements it has not seen: errors, the region it knows, and how often intervals hold.

Every setting (a table, a model, a number of chips) is left out whole, and foretold by a fit to all others.
Knows nothing about what a setting is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partita.cost.interval import COVERAGE, half_width, outside
from partita.measure.fit import SCALE, Point, fit
from partita.specs.profile import COVERAGES, LeftOut, Profile, Region

_MOST = 100
"""Errors that a profile's file has one by one; of more it has their sizes at `_STEPS` equal steps."""
_STEPS = 20


@dataclass(frozen=True)
class Unseen:
    """Points of one setting, and the logarithms of measured seconds over those of a fit to all others."""

    group: str
    points: tuple[Point, ...]
    region: Region
    """Of all others."""
    errors: np.ndarray

    def inside(self, errors: Sequence[float], coverage: float) -> np.ndarray:
        """Which points lie in intervals by the other settings, whose held-out errors are given."""
        width = half_width(errors, coverage)
        beyond = [max(outside(self.region, asked)[0] for asked in point.asked) for point in self.points]
        return np.abs(self.errors) <= width * (1 + np.array(beyond) / 2)


def leave_out(
    points: Sequence[Point], template: Profile, starts: Mapping[str, float], scale: float = SCALE
) -> tuple[Unseen, ...]:
    """Every group of points left out once, in the order of their names."""
    found = []
    for group in sorted({group for point in points for group in point.groups}):
        rest = [point for point in points if group not in point.groups]
        left = tuple(point for point in points if group in point.groups)
        profile = fit(rest, template, starts, scale).profile
        errors = np.array([math.log(point.seconds / point.seconds_by(profile)) for point in left])
        found.append(Unseen(group, left, region_of(rest), errors))
    return tuple(found)


def foretold(found: Sequence[Unseen], coverage: float) -> list[np.ndarray]:
    """Of every setting which points lie in their interval.

    It is that of the fit to all other settings, with their held-out errors, wider outside their region.
    """
    return [
        left.inside([error for other in found if other is not left for error in other.errors], coverage)
        for left in found
    ]


def coverages(found: Sequence[Unseen]) -> tuple[float, ...]:
    """At each of `COVERAGES` the share of all points in their interval (`foretold`)."""
    return tuple(float(np.mean(np.concatenate(foretold(found, level)))) for level in COVERAGES)


def with_held_out(profile: Profile, found: Sequence[Unseen]) -> Profile:
    """The profile with its held-out errors, by setting too, and what share of them intervals hold."""
    settings = {
        left.group: LeftOut(
            count=len(left.points),
            median=float(np.median(np.abs(left.errors))),
            worst=float(np.max(np.abs(left.errors))),
            inside=float(np.mean(inside)),
        )
        for left, inside in zip(found, foretold(found, COVERAGE), strict=True)
    }
    errors = with_errors(profile, np.concatenate([left.errors for left in found]))
    return errors.model_copy(update={"coverage": coverages(found), "left_out": settings})


def with_errors(profile: Profile, errors: np.ndarray) -> Profile:
    """The profile with held-out errors: all, or where there are many their sizes at equal steps."""
    count = None
    if len(errors) > _MOST:
        errors, count = np.quantile(np.abs(errors), np.linspace(0, 1, _STEPS + 1)), len(errors)
    return profile.model_copy(update={"residuals": tuple(map(float, errors)), "held_out": count})


def region_of(points: Sequence[Point]) -> Region:
    """What the points span, all phases together."""
    asked = [each for point in points for each in point.asked]

    def span(name: str) -> tuple[float, float]:
        values = [float(getattr(each, name)) for each in asked]
        return min(values), max(values)

    if not asked:
        return Region()
    return Region(
        parameters=span("parameters"),
        chips=span("chips"),
        tokens=span("tokens"),
        context=span("context"),
        phases=tuple(sorted({each.phase for each in asked})),
        layouts=tuple(sorted({each.layout for each in asked})),
    )
