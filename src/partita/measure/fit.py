"""Fits the constants of a profile to measured times, by robust least squares on logarithms.

What is fitted is the logarithm of each constant, within its plausible range, so that the estimates' relative
errors are least; errors far above `SCALE` count less than their squares (SciPy's soft_l1). Confidence
intervals come from the curvature of the fit.

Held-out errors come from fitting again without a group of measurements (a table, a model, a number of chips),
and estimating these by the fit to all others: a fold. Where measurements are grouped in several ways (by
model, by engine), every way is tried, and intervals are made from the one with the largest errors. Nothing
here knows what a measurement is of: it can be timed by a profile, and somebody measured it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partita.cost.interval import COVERAGE, Asked, half_width, outside, widening
from partita.specs.profile import (
    COVERAGES,
    PHASES,
    Constant,
    LeftOut,
    Phase,
    Profile,
    Region,
    term_of,
)

SCALE = 0.03
"""Relative error from which on points count less: what a careful timing repeats within."""

_LEAST = 1e-9  # of a constant whose range starts at 0


@dataclass(frozen=True)
class Measurement:
    """A measured time. `seconds_by` gives a profile's estimate; those of one group are left out together."""

    label: str
    groups: tuple[str, ...]
    seconds: float
    seconds_by: Callable[[Profile], float]
    asked: tuple[Asked, ...] = ()
    """What it was measured of, as a profile's region counts it; several phases where it is of several."""
    weight: float = 1.0
    """What its error counts in a fit: less than 1 where it says less about what is to be estimated."""


@dataclass(frozen=True)
class Fit:
    """A profile with the constants that fit best, and the logarithms of measured over estimated seconds."""

    profile: Profile
    errors: np.ndarray


def fit(
    points: Sequence[Measurement], template: Profile, starts: Mapping[str, float], scale: float = SCALE
) -> Fit:
    """Fits the constants named in `starts`, from there on; all others are the template's.

    One that no point depends on keeps its start.

    Raises ValueError with no more points than constants, or a start outside its plausible range.
    """
    from scipy.optimize import least_squares  # slow to import
    from scipy.stats import t as student

    template, names = _settled(points, template, starts)
    if not names or len(points) <= len(names):
        raise ValueError(f"{len(points)} points do not identify {len(names)} constants")
    logs = np.log([point.seconds for point in points])
    weights = np.array([point.weight for point in points])
    least, most = np.array([_range(name) for name in names]).T

    def errors(x: np.ndarray) -> np.ndarray:
        profile = _with(
            template, {name: Constant(value=float(v), fixed="trial") for name, v in _at(x).items()}
        )
        return np.log([point.seconds_by(profile) for point in points]) - logs

    def weighted(x: np.ndarray) -> np.ndarray:
        return errors(x) * weights

    def _at(x: np.ndarray) -> dict[str, float]:
        values = np.clip(np.exp(x), np.exp(least), np.exp(most))
        return dict(zip(names, values, strict=True))

    start = np.clip(np.log([starts[name] for name in names]), least, most)
    found = least_squares(
        weighted, start, bounds=(least, most), loss="soft_l1", f_scale=scale, diff_step=1e-3
    )
    freedom = len(points) - len(names)
    curvature = found.jac.T @ found.jac
    # of a constant, or a mixture of some, that no point tells, the variance is large rather than infinite
    curvature += np.eye(len(names)) * 1e-12 * np.trace(curvature)
    covariance = np.linalg.inv(curvature) * 2 * found.cost / freedom
    spread = student.ppf(0.95, freedom) * np.sqrt(np.diag(covariance))
    fitted = {
        name: _constant(float(x), float(s), float(a), float(b))
        for name, x, s, a, b in zip(names, found.x, spread, least, most, strict=True)
    }
    return Fit(_with(template, fitted), -errors(found.x))


def _settled(
    points: Sequence[Measurement], template: Profile, starts: Mapping[str, float]
) -> tuple[Profile, list[str]]:
    """The template with every constant that changes no point's estimate at its start, and the other names."""
    start = _with(template, {name: Constant(value=value, fixed="start") for name, value in starts.items()})
    before = [point.seconds_by(start) for point in points]
    settled, names = {}, []
    for name, value in starts.items():
        nearby = _with(start, {name: Constant(value=0.9 * value, fixed="trial")})
        if [point.seconds_by(nearby) for point in points] == before:
            settled[name] = Constant(value=value, fixed="no point depends on it")
        else:
            names.append(name)
    return _with(template, settled), names


def _range(name: str) -> tuple[float, float]:
    term = term_of(name)
    if term is None:
        raise ValueError(f"{name} is no constant of a profile")
    return math.log(max(term.low, _LEAST)), math.log(term.high)


def _with(template: Profile, constants: Mapping[str, Constant]) -> Profile:
    return template.model_copy(update={"constants": {**template.constants, **constants}})


def _constant(log: float, spread: float, least: float, most: float) -> Constant:
    """The constant with its 90% confidence interval, kept within what is plausible."""
    low, high = max(log - spread, least), min(log + spread, most)
    return Constant(value=math.exp(log), low=math.exp(min(low, log)), high=math.exp(max(high, log)))


# -- held-out errors ------------------------------------------------------------------------------------

_MOST = 100
"""Errors that a profile's file has one by one; of more it has their sizes at `_STEPS` equal steps."""
_STEPS = 20


@dataclass(frozen=True)
class Fold:
    """Measurements of one group, and the logarithms of their seconds over those of a fit to all others."""

    group: str
    points: tuple[Measurement, ...]
    region: Mapping[Phase, Region]
    """What all others span."""
    errors: np.ndarray
    grouping: int = 0
    """Which of the measurements' groups it is."""

    def inside(self, errors: Sequence[float], coverage: float) -> np.ndarray:
        """Which measurements lie in intervals by the other folds, whose held-out errors are given."""
        return np.abs(self.errors) <= half_width(errors, coverage) * _widened(self.region, self.points)


def leave_out(
    points: Sequence[Measurement], template: Profile, starts: Mapping[str, float], scale: float = SCALE
) -> tuple[Fold, ...]:
    """Every group of measurements left out once, grouping by grouping and in the order of their names."""
    found = []
    for grouping, group in sorted({each for point in points for each in enumerate(point.groups)}):
        own = slice(grouping, grouping + 1)
        left = tuple(point for point in points if point.groups[own] == (group,))
        rest = [point for point in points if point.groups[own] != (group,)]
        errors = _errors(left, fit(rest, template, starts, scale).profile)
        found.append(Fold(group, left, region_of(rest), errors, grouping))
    return tuple(found)


def covered(folds: Sequence[Fold], coverage: float) -> list[np.ndarray]:
    """Which measurements of every fold lie in their interval.

    It is that of the fit to all others, with held-out errors of the other folds of the same grouping, wider
    outside their region.
    """
    return [
        fold.inside(
            [
                e
                for other in folds
                if other is not fold and other.grouping == fold.grouping
                for e in other.errors
            ],
            coverage,
        )
        for fold in folds
    ]


def widest(folds: Sequence[Fold]) -> tuple[Fold, ...]:
    """The folds of the grouping whose held-out errors give the widest interval."""
    groupings: dict[int, list[Fold]] = {}
    for fold in folds:
        groupings.setdefault(fold.grouping, []).append(fold)
    return tuple(
        max(groupings.values(), key=lambda each: half_width([e for fold in each for e in fold.errors]))
    )


def coverages(found: Sequence[Fold]) -> tuple[float, ...]:
    """The share of all measurements in their interval (`covered`), at each of `COVERAGES`."""
    return tuple(float(np.mean(np.concatenate(covered(found, level)))) for level in COVERAGES)


def unfitted(known: Profile, points: Sequence[Measurement]) -> Profile:
    """What a new fit to points keeps of a profile: its words and what is fixed; the region is the points'."""
    fixed = {name: constant for name, constant in known.constants.items() if constant.fixed is not None}
    return known.model_copy(
        update={"constants": fixed, "region": region_of(points), "coverage": (), "left_out": {}}
    )


def with_held_out(profile: Profile, found: Sequence[Fold]) -> Profile:
    """The profile with its held-out errors, of the grouping with the widest interval, and what share of them
    intervals hold; by group it has those of every grouping."""
    settings = {
        left.group: LeftOut(
            count=len(left.points),
            median=float(np.median(np.abs(left.errors))),
            worst=float(np.max(np.abs(left.errors))),
            inside=float(np.mean(inside)),
        )
        for left, inside in zip(found, covered(found, COVERAGE), strict=True)
    }
    chosen = widest(found)
    errors = with_errors(profile, np.concatenate([left.errors for left in chosen]))
    return errors.model_copy(update={"coverage": coverages(chosen), "left_out": settings})


def with_apart(profile: Profile, points: Sequence[Measurement]) -> Profile:
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


def region_of(points: Sequence[Measurement]) -> dict[Phase, Region]:
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


def _errors(points: Sequence[Measurement], profile: Profile) -> np.ndarray:
    return np.array([math.log(point.seconds / point.seconds_by(profile)) for point in points])


def _widened(region: Mapping[Phase, Region], points: Sequence[Measurement]) -> np.ndarray:
    """How many times as wide the interval of each is; of several phases, as that of the least known."""
    return np.array([widening(max(outside(region, asked)[0] for asked in point.asked)) for point in points])
