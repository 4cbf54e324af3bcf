"""Which constants of a profile the measurements of a machine tell, and their values.

A constant that they do not tell (its 90% confidence interval spans more than a factor of `_WIDEST`) is fixed
at the value that changes nothing, and the others are fitted again; one of a kind of collective is left out
where its level has the same for all kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partita.measure.calibrate.machine import Machine
from partita.measure.fit import Fit, Measurement, fit
from partita.planner.space import prime_factors
from partita.specs.profile import COLLECTIVES, Constant, Profile, term_of

_WIDEST = 10.0

_READING = {"half_rows": 2.0, "memory_share": 0.1}
"""Another start, with operations limited by reading. Where the first has all of them limited by arithmetic,
no measurement depends on the memory, and the fit could not find that some do."""

SCALE = 0.1
"""Relative error from which on a measurement counts less."""


def starts(machine: Machine) -> dict[str, float]:
    """The constants fitted, and where the fit starts: round guesses."""
    found = {"matmul_share": 0.7, "half_rows": 20.0, "memory_share": 0.5, "activation_share": 0.3}
    for kind, size in machine.fabric:
        if size > 1:
            found |= {f"{kind}/{collective}/share": 0.5 for collective in COLLECTIVES}
            found[f"{kind}/message_seconds"] = 2e-5
            found[f"{kind}/all-reduce/message_seconds"] = 2e-5
            found[f"{kind}/collective-permute/message_seconds"] = 2e-5
            if prime_factors(size) != [size]:
                found[f"{kind}/hop_seconds"] = 5e-6
    return found | {"layer_seconds": 5e-5, "step_seconds": 5e-4}


def template(machine: Machine) -> Profile:
    """What is not fitted."""
    constants = {}
    if machine.shared:
        why = "the devices are threads on one memory, where a collective copies a chip's own shard too"
        constants = {
            f"{kind}/own_share": Constant(value=1.0, fixed=why) for kind, size in machine.fabric if size > 1
        }
        why = "the devices share the processor: while one copies, no other multiplies any faster"
        constants["looped_share"] = Constant(value=0.0, fixed=why)
    return Profile(name="here", source="being fitted", constants=constants)


@dataclass(frozen=True)
class Fitted:
    """A profile; the constants that the measurements determine are named in `determined`, `template` has the
    others, with reasons."""

    profile: Profile
    template: Profile
    determined: tuple[str, ...]


def fitted(points: Sequence[Measurement], template: Profile, starts: Mapping[str, float]) -> Fitted:
    """Fits the constants named in `starts`, and fixes those that the measurements do not determine."""
    reading = {name: _READING.get(name, value) for name, value in starts.items()}
    found = min((fit(points, template, each, SCALE) for each in (starts, reading)), key=_cost_on(points))
    while True:
        profile = found.profile
        spans = {name: profile.constants[name] for name in starts}
        # one that no point depends on has no interval, and is not determined either
        widths = {n: c.high / c.low if c.low and c.high else math.inf for n, c in spans.items()}
        widest = max(widths, key=lambda name: widths[name])
        if widths[widest] <= _WIDEST:
            return Fitted(profile, template, tuple(starts))
        parts = widest.split("/")
        if len(parts) < 3 or f"{parts[0]}/{parts[2]}" not in starts:  # else the level's stands for it
            template = _without(widest, spans[widest], template)
        starts = {name: c.value for name, c in spans.items() if name != widest}
        found = fit(points, template, starts, SCALE)


def _cost_on(points: Sequence[Measurement]) -> Callable[[Fit], float]:
    """What a fit makes least: of soft_l1, without its constant factors."""
    weights = np.array([point.weight for point in points])
    return lambda found: float(np.sum(np.sqrt(1 + (found.errors * weights / SCALE) ** 2)))


def _without(name: str, found: Constant, template: Profile) -> Profile:
    """The constant fixed where it changes nothing."""
    term = term_of(name)
    assert term is not None
    why = "no measurement depends on it"
    if found.low is not None:
        why = f"the measurements do not tell it: 90% interval {found.low:.2g} to {found.high:.2g}"
    constants = {**template.constants, name: Constant(value=term.neutral, fixed=why)}
    return template.model_copy(update={"constants": constants})
