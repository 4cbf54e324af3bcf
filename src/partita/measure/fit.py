"""Fits the constants of a profile to measured times, by robust least squares on logarithms.

What is fitted is the logarithm of each constant, within its plausible range, so that the estimates' relative
errors are least; errors far above `SCALE` count less than their squares (SciPy's soft_l1). Confidence
intervals come from the curvature of the fit, held-out errors from fitting again without a group of points.
Knows nothing about what a point is: it can be timed by a profile, and somebody measured it. How far held-out
errors justify an interval is `held_out.py`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partita.cost.interval import Asked
from partita.specs.profile import Constant, Profile, term_of

SCALE = 0.03
"""Relative error from which on points count less: what a careful timing repeats within."""

_LEAST = 1e-9  # of a constant whose range starts at 0


@dataclass(frozen=True)
class Point:
    """A measured time. `seconds_by` gives a profile's estimate; those of one group are left out together."""

    label: str
    groups: tuple[str, ...]
    seconds: float
    seconds_by: Callable[[Profile], float]
    asked: tuple[Asked, ...] = ()
    """What it was measured of, as a profile's region counts it; several phases where it is of several."""
    weight: float = 1.0
    """Of its error in a fit: less than 1 where it says less about what is to be estimated."""


@dataclass(frozen=True)
class Fit:
    """A profile with the constants that fit best, and the logarithms of measured over estimated seconds."""

    profile: Profile
    errors: np.ndarray


def fit(points: Sequence[Point], template: Profile, starts: Mapping[str, float], scale: float = SCALE) -> Fit:
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
    points: Sequence[Point], template: Profile, starts: Mapping[str, float]
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
    """With its 90% confidence interval, kept within what is plausible."""
    low, high = max(log - spread, least), min(log + spread, most)
    return Constant(value=math.exp(log), low=math.exp(min(low, log)), high=math.exp(max(high, log)))
