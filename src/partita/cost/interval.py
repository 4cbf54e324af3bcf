"""How far an estimate may be off: an interval from held-out error, and what of it is extrapolated.

Within the region a profile was fitted to, 90% of measurements whose whole setting was left out of the fit lie
within the interval (split conformal prediction on the size of the logarithmic error). Outside it is wider by
half for every doubling of a quantity beyond the region and for every phase, layout, format or chip that the
fit had not seen: a convention, checked by `Profile.coverage`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from partita.specs.profile import Phase, Profile, Region
from partita.specs.units import format_count

COVERAGE = 0.9
_WIDEST = 20.0
"""The largest logarithmic half-width: a factor of a few hundred million says nothing anyway."""
_FEWEST = 0.25
"""The least logarithmic half-width where too few measurements were left out to give a quantile."""
NOT_SAID = "what it was fitted to is not said"
_QUANTITIES = (
    ("parameters", "parameters of the model"),
    ("chips", "chips"),
    ("tokens", "tokens a step"),
    ("context", "positions of context"),
)
_KINDS = (
    ("layout", "layout {}", "layouts"),
    ("weights", "{} weights", "weights"),
    ("activations", "{} activations", "activations"),
    ("chip", "chip {}", "chip_names"),
)
"""Fields of `Asked`, each with its words and the field of `Region` that lists what was seen."""


@dataclass(frozen=True)
class Interval:
    """Factors on an estimate between which 90 of 100 times lie, and sentences on what was extrapolated."""

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
    phase: Phase
    layout: str
    weights: str
    activations: str
    chip: str


def interval(profile: Profile, asked: Asked) -> Interval:
    """The interval of an estimate by `profile`."""
    beyond, sentences = outside(profile.region, asked)
    width = min(half_width(profile.residuals, held_out=profile.held_out) * widening(beyond), _WIDEST)
    return Interval(math.exp(-width), math.exp(width), sentences)


def around(seconds: float, least: float, found: Interval) -> tuple[float, float]:
    """The least and the most that a time of `seconds`, as estimated, may be; never below its bound,
    `least`."""
    return max(least, seconds * found.low), seconds * found.high


def widening(beyond: float) -> float:
    """How many times as wide an interval is `beyond` doublings outside of the region."""
    return 1 + beyond / 2


def outside(region: Mapping[Phase, Region], asked: Asked) -> tuple[float, tuple[str, ...]]:
    """How many doublings an estimate lies outside of what the profile was fitted to, and sentences that say
    so.

    `region` maps phases to what was measured of them; only the phase of the estimate counts. A phase that was
    not measured counts as one doubling, and then all quantities but tokens and context are compared with
    those of all phases.
    """
    if not region:
        return 0.0, (NOT_SAID,)
    beyond, sentences, quantities = 0.0, [], _QUANTITIES
    seen = [region[asked.phase]] if asked.phase in region else list(region.values())
    if asked.phase not in region:
        beyond, sentences = 1.0, [f"phase {asked.phase}, fitted to {', '.join(region)}"]
        quantities = quantities[:2]
    for name, unit in quantities:
        lows, highs = zip(*(getattr(each, name) for each in seen), strict=True)
        low, high, value = min(lows), max(highs), getattr(asked, name)
        if not low <= value <= high:
            beyond += abs(math.log2(value / (low if value < low else high)))
            sentences.append(f"{format_count(value)} {unit}, fitted to {_from_to(low, high)}")
    for name, said, field in _KINDS:
        value = getattr(asked, name)
        known = dict.fromkeys(kind for each in seen for kind in getattr(each, field))
        if value not in known:
            beyond += 1
            sentences.append(f"{said.format(value)}, fitted to {', '.join(known)}")
    return beyond, tuple(sentences)


def half_width(residuals: Sequence[float], coverage: float = COVERAGE, held_out: int | None = None) -> float:
    """The size of logarithmic error that a share `coverage` of new measurements stays within.

    It is the ceil(coverage (n + 1))-th smallest of n held-out errors (split conformal prediction: Lei et al.
    2018, arXiv 1604.04173); where n is too small for that, twice the largest, at least 0.25. Where `held_out`
    gives n, `residuals` are quantiles of the errors at equal steps, and what lies between is interpolated.
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


def _from_to(low: float, high: float) -> str:
    first, last = format_count(low), format_count(high)
    return first if first == last else f"{first} to {last}"
