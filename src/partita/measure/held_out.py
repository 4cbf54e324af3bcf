"""What a fit says of measurements it has not seen: errors, the region it knows, and how often intervals hold.

Every setting (a table, a model, a number of chips) is left out whole, and foretold by a fit to all others.
Where points are settings in several ways (all of a model, all of an engine), every way is tried, and
intervals are made from the one that is hardest to foretell. Knows nothing about what a setting is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partita.cost.interval import COVERAGE, Asked, half_width, outside, widening
from partita.measure.fit import SCALE, Point, fit
from partita.specs.profile import COVERAGES, PHASES, LeftOut, Phase, Profile, Region

_MOST = 100
"""Errors that a profile's file has one by one; of more it has their sizes at `_STEPS` equal steps."""
_STEPS = 20


@dataclass(frozen=True)
class Unseen:
    """Points of one setting, and the logarithms of measured seconds over those of a fit to all others."""

    group: str
    points: tuple[Point, ...]
    region: Mapping[Phase, Region]
    """Of all others."""
    errors: np.ndarray
    way: int = 0
    """Which of the points' groups the setting is."""

    def inside(self, errors: Sequence[float], coverage: float) -> np.ndarray:
        """Which points lie in intervals by the other settings, whose held-out errors are given."""
        return np.abs(self.errors) <= half_width(errors, coverage) * _widened(self.region, self.points)


def leave_out(
    points: Sequence[Point], template: Profile, starts: Mapping[str, float], scale: float = SCALE
) -> tuple[Unseen, ...]:
    """Every group of points left out once, way by way and in the order of their names."""
    found = []
    for way, group in sorted({each for point in points for each in enumerate(point.groups)}):
        left = tuple(point for point in points if point.groups[way : way + 1] == (group,))
        rest = [point for point in points if point.groups[way : way + 1] != (group,)]
        errors = _errors(left, fit(rest, template, starts, scale).profile)
        found.append(Unseen(group, left, region_of(rest), errors, way))
    return tuple(found)


def foretold(found: Sequence[Unseen], coverage: float) -> list[np.ndarray]:
    """Of every setting which points lie in their interval.

    It is that of the fit to all other settings, with held-out errors of those that are left out in the same
    way, wider outside their region.
    """
    return [
        left.inside(
            [e for other in found if other is not left and other.way == left.way for e in other.errors],
            coverage,
        )
        for left in found
    ]


def hardest(found: Sequence[Unseen]) -> tuple[Unseen, ...]:
    """The settings of the way whose held-out errors give the widest interval."""
    ways: dict[int, list[Unseen]] = {}
    for left in found:
        ways.setdefault(left.way, []).append(left)
    return tuple(max(ways.values(), key=lambda each: half_width([e for left in each for e in left.errors])))


def coverages(found: Sequence[Unseen]) -> tuple[float, ...]:
    """At each of `COVERAGES` the share of all points in their interval (`foretold`)."""
    return tuple(float(np.mean(np.concatenate(foretold(found, level)))) for level in COVERAGES)


def unfitted(known: Profile, points: Sequence[Point]) -> Profile:
    """What a new fit to points keeps of a profile: its words and what is fixed; the region is the points'."""
    fixed = {name: constant for name, constant in known.constants.items() if constant.fixed is not None}
    return known.model_copy(
        update={"constants": fixed, "region": region_of(points), "coverage": (), "left_out": {}}
    )


def with_held_out(profile: Profile, found: Sequence[Unseen]) -> Profile:
    """The profile with its held-out errors, of the hardest way, and what share of them intervals hold.

    By setting it has those of every way.
    """
    settings = {
        left.group: LeftOut(
            count=len(left.points),
            median=float(np.median(np.abs(left.errors))),
            worst=float(np.max(np.abs(left.errors))),
            inside=float(np.mean(inside)),
        )
        for left, inside in zip(found, foretold(found, COVERAGE), strict=True)
    }
    chosen = hardest(found)
    errors = with_errors(profile, np.concatenate([left.errors for left in chosen]))
    return errors.model_copy(update={"coverage": coverages(chosen), "left_out": settings})


def with_apart(profile: Profile, points: Sequence[Point]) -> Profile:
    """The profile with its errors on points that were kept apart.

    Those outside of its region are divided by how much wider their intervals are.
    """
    return with_errors(profile, _errors(points, profile) / _widened(profile.region, points))


def with_errors(profile: Profile, errors: np.ndarray) -> Profile:
    """The profile with held-out errors: all, or where there are many their sizes at equal steps."""
    count = None
    if len(errors) > _MOST:
        errors, count = np.quantile(np.abs(errors), np.linspace(0, 1, _STEPS + 1)), len(errors)
    return profile.model_copy(update={"residuals": tuple(map(float, errors)), "held_out": count})


def region_of(points: Sequence[Point]) -> dict[Phase, Region]:
    """What the points span, by phase; a point of several phases is of each of them."""
    found = {}
    for phase in PHASES:
        asked = [each for point in points for each in point.asked if each.phase == phase]
        if asked:
            found[phase] = _spanned(asked)
    return found


def _spanned(asked: Sequence[Asked]) -> Region:
    def span(name: str) -> tuple[float, float]:
        values = [float(getattr(each, name)) for each in asked]
        return min(values), max(values)

    def seen(name: str) -> tuple[str, ...]:
        return tuple(sorted({getattr(each, name) for each in asked}))

    return Region(
        parameters=span("parameters"),
        chips=span("chips"),
        tokens=span("tokens"),
        context=span("context"),
        layouts=seen("layout"),
        weights=seen("weights"),
        activations=seen("activations"),
        chip_names=seen("chip"),
    )


def _errors(points: Sequence[Point], profile: Profile) -> np.ndarray:
    return np.array([math.log(point.seconds / point.seconds_by(profile)) for point in points])


def _widened(region: Mapping[Phase, Region], points: Sequence[Point]) -> np.ndarray:
    """How many times as wide the interval of each is; of several phases, as that of the least known."""
    return np.array([widening(max(outside(region, asked)[0] for asked in point.asked)) for point in points])
