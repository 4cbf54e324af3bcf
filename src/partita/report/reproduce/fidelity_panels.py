"""The calibration plot: published times around their estimates, and how often intervals held."""

from __future__ import annotations

import math
from collections.abc import Sequence

from partita.cost.interval import half_width
from partita.report.plots import Panel, Series
from partita.report.reproduce.fidelity_cells import Cell
from partita.specs.catalogue import profile
from partita.specs.profile import COVERAGES


def scatter(found: Sequence[Cell]) -> Panel:
    """Published over estimated against what was estimated; bands are 90% intervals in the fitted region."""
    profiles = tuple(dict.fromkeys(cell.profile for cell in found))
    series = []
    for i, name in enumerate(profiles):
        of_it = [cell for cell in found if cell.profile == name]
        times, known = [cell.estimate for cell in of_it], profile(name)
        first, last = min(times), max(times)
        high = math.exp(half_width(known.residuals, held_out=known.held_out))
        ratios = tuple(cell.published / cell.estimate for cell in of_it)
        band = ((first, 1 / high), (last, 1 / high), (last, high), (first, high))
        series += [
            Series(f"{name}, 90% interval", (first, last), (1.0, 1.0), kind="estimate", colour=i, band=band),
            Series(name, tuple(times), ratios, kind="published", colour=i),
        ]
    return Panel(
        title="Published over estimated, with 90% intervals",
        x_label="Estimate (s)",
        y_label="published / estimate",
        series=tuple(series),
        x_scale="log",
        headroom=0.3,
    )


def calibration(profiles: Sequence[str]) -> Panel:
    """The share of held-out times in intervals of each level; the dashed line is what they should hold."""
    held = (
        Series(name, COVERAGES, profile(name).coverage, kind="estimate", colour=i)
        for i, name in enumerate(profiles)
        if profile(name).coverage
    )
    return Panel(
        title="Calibration: settings left out of the fit",
        x_label="level of the interval",
        y_label="share of times inside",
        series=(*held, Series("as it should be", COVERAGES, COVERAGES, kind="count", dashed=True, colour=4)),
        percent=True,
    )
