"""How close estimates come to published times: every time, errors by table, and what is known of profiles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from partita.cost.interval import around, half_width, interval
from partita.cost.number import array
from partita.cost.prediction import Prediction
from partita.measure import served_points
from partita.measure.refit import measured_runs
from partita.report.plots import Panel, Series
from partita.report.reproduce.exhibit import Column, Exhibit, ExhibitTable, columns
from partita.report.reproduce.pricing import on_torus, run
from partita.report.reproduce.published import published
from partita.specs.catalogue import profile
from partita.specs.profile import COVERAGES, term_of


def fidelity() -> Exhibit:
    """Published times beside their bounds and estimates."""
    found = cells()
    profiles = tuple(dict.fromkeys(cell.profile for cell in found))
    return Exhibit(
        name="fidelity",
        title="Fidelity: published times beside their bounds and estimates",
        caption=(
            "Bound: the roofline at peak rates, which no run can beat. Estimate: the same counts through a "
            "profile of efficiencies fitted to the cells marked so, with a 90% interval made from times "
            "left out of a fit. Error: estimate over published, less 1. For cells that were fitted it says "
            "how well a few constants describe them, for the others how well they predict.",
            *(f"{name}: {profile(name).source}." for name in profiles),
            f"Provenance: Table 2 {published('table2').provenance}; Table D.2 (20/8) "
            f"{published('ours-20-8').provenance}; FasterTransformer: its guide. "
            "Settings are left out whole, and judged by intervals made without them; the held-out steps of "
            "tpu-v5e gave its interval, so none is left to check it.",
        ),
        panels=(_ratios(found), _calibration(profiles)),
        tables=(
            _errors_by_table(found),
            _settings(profiles),
            _coverage(profiles),
            _constants(profiles),
            _reasons(profiles),
            _every_cell(found),
        ),
    )


# -- published times and what is predicted for them ----------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One published time beside what is predicted for it; all in seconds."""

    table: str
    name: str
    profile: str
    fitted: bool
    """Whether the profile's constants were fitted to it."""
    bound: float
    estimate: float
    low: float
    high: float
    published: float
    gave_interval: bool = False
    """Whether it was kept apart from the fit and the interval is made of it and its like."""

    @property
    def error(self) -> float:
        """The estimate's error, as a share of what was published."""
        return self.estimate / self.published - 1

    @property
    def inside(self) -> bool | None:
        """Whether it is in the interval; None where that says nothing, since the interval is made of it."""
        return None if self.gave_interval else self.low <= self.published <= self.high


@cache
def cells() -> tuple[Cell, ...]:
    """Every published time that an estimate can be set beside, table by table."""
    return (*_measured("tpu-v4"), *_figure1(), *_measured("a100"), *_served(), *_measured("tpu-v5e"))


def _measured(name: str) -> Iterator[Cell]:
    for which, fitted in (("runs", True), ("unseen", False)):
        for each in measured_runs(name, which):
            model, phases = each.predictions[0].setting.model.name, [p.phase for p in each.predictions]
            what = f"{model} {' and '.join(phases)}, batch {each.batch}"
            found = _cell(f"{name}: {each.group}", what, fitted, each.predictions, each.seconds)
            yield replace(found, gave_interval=not fitted)


def _figure1() -> Iterator[Cell]:
    """Seconds a token in the text beside Figure 1: that in bf16 is in no table that was fitted to."""
    for row in published("figure1").rows:
        setting = on_torus("palm-540b", 64, batch=row["batch"], weights=row["weights"])
        found = run(setting, "decode", "ws2d/batch").prediction
        seconds = row["milliseconds_per_token"] / 1e3 * found.steps
        name = f"palm-540b ws2d/batch decode in {row['weights']}, batch {row['batch']}"
        yield _cell("tpu-v4: Figure 1, text", name, False, (found,), seconds)


def _cell(table: str, name: str, fitted: bool, parts: tuple[Prediction, ...], seconds: float) -> Cell:
    found = [each.estimate for each in parts if each.estimate is not None]
    return Cell(
        table=table,
        name=name,
        profile=found[0].profile.name,
        fitted=fitted,
        bound=sum(each.total_seconds for each in parts),
        estimate=sum(each.total_seconds for each in found),
        low=sum(each.total_interval[0] for each in found),
        high=sum(each.total_interval[1] for each in found),
        published=seconds,
    )


def _served() -> Iterator[Cell]:
    known = profile(served_points.NAME)
    for block in served_points.published():
        bounds = array(block.served.bound_seconds())
        timed = zip(block.rows, bounds, block.estimated(known), strict=True)
        for i, (row, bound, estimate) in enumerate(timed):
            low, high = around(float(estimate), float(bound), interval(known, block.asked(i)))
            yield Cell(
                table=f"h100: served {row.model}, {row.engine}",
                name=f"{row.weights} on {row.chips} {row.chip}, {row.concurrency} clients, "
                f"{row.prompt} in, {row.output} out",
                profile=known.name,
                fitted=True,
                bound=float(bound),
                estimate=float(estimate),
                low=low,
                high=high,
                published=row.seconds,
            )


def _every_cell(found: Sequence[Cell]) -> ExhibitTable:
    return ExhibitTable(
        "Every cell",
        columns(
            "table",
            Column("cell", "cell"),
            "fitted",
            "bound_seconds",
            Column("estimate_seconds", "estimate", "seconds"),
            Column("low_seconds", "low", "seconds"),
            Column("high_seconds", "high", "seconds"),
            "published_seconds",
            Column("error", "error", "share"),
        ),
        tuple(
            {
                "table": cell.table,
                "cell": cell.name,
                "fitted": cell.fitted,
                "bound_seconds": cell.bound,
                "estimate_seconds": cell.estimate,
                "low_seconds": cell.low,
                "high_seconds": cell.high,
                "published_seconds": cell.published,
                "error": cell.error,
            }
            for cell in found
        ),
    )


# -- how far estimates are from them -------------------------------------------------------------------------


def _errors_by_table(found: Sequence[Cell]) -> ExhibitTable:
    """Tables first, then all cells of each profile."""
    groups: dict[tuple[str, bool], list[Cell]] = {}
    for cell in found:
        groups.setdefault((cell.table, cell.fitted), []).append(cell)
    for cell in found:
        groups.setdefault((f"{cell.profile}, all", cell.fitted), []).append(cell)
    return ExhibitTable(
        "Errors by table",
        columns(
            "table",
            "fitted",
            Column("cells", "cells", "count"),
            "median_error",
            Column("mean_error", "mean", "share"),
            Column("p90_error", "90th percentile", "share"),
            "worst_error",
            "inside",
            Column("least_published_over_bound", "published / bound, least", "ratio"),
        ),
        tuple(_errors(table, fitted, group) for (table, fitted), group in groups.items()),
    )


def _errors(table: str, fitted: bool, group: list[Cell]) -> dict[str, Any]:
    sizes = np.abs([cell.error for cell in group])
    inside = [cell.inside for cell in group if cell.inside is not None]  # of a group all or none
    return {
        "table": table,
        "fitted": fitted,
        "cells": len(group),
        "median_error": float(np.median(sizes)),
        "mean_error": float(np.mean(sizes)),
        "p90_error": float(np.quantile(sizes, 0.9)),
        "worst_error": float(np.max(sizes)),
        "inside": float(np.mean(inside)) if inside else None,
        "least_published_over_bound": min(cell.published / cell.bound for cell in group),
    }


def _ratios(found: Sequence[Cell]) -> Panel:
    """Published over estimated against what was estimated; bands are 90% intervals in the fitted region."""
    series = []
    for i, name in enumerate(dict.fromkeys(cell.profile for cell in found)):
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


# -- what is known of the profiles ---------------------------------------------------------------------------


def _calibration(profiles: Sequence[str]) -> Panel:
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


def _settings(profiles: Sequence[str]) -> ExhibitTable:
    """Each setting was left out whole and predicted by a fit to all others."""
    return ExhibitTable(
        "Settings left out, predicted by a fit to all others",
        columns(
            "profile",
            Column("setting", "left out"),
            Column("count", "times", "count"),
            "median_error",
            "worst_error",
            "inside",
            inside="in the interval by others",
        ),
        tuple(
            {
                "profile": name,
                "setting": setting,
                "count": left.count,
                "median_error": math.expm1(left.median),
                "worst_error": math.expm1(left.worst),
                "inside": left.inside,
            }
            for name in profiles
            for setting, left in profile(name).left_out.items()
        ),
    )


def _coverage(profiles: Sequence[str]) -> ExhibitTable:
    """How often times lay in their intervals; nothing where all held-out times gave the width."""
    keys = {level: f"inside_{level * 100:.0f}" for level in COVERAGES}
    rows = []
    for name in profiles:
        found = profile(name)
        width = half_width(found.residuals, held_out=found.held_out)
        shares = found.coverage or (None,) * len(COVERAGES)
        held = dict(zip(keys.values(), shares, strict=True))
        held_out = found.held_out or len(found.residuals)
        rows.append({"profile": name, "held_out": held_out, "width": math.expm1(width), **held})
    return ExhibitTable(
        "Coverage: share of held-out times in intervals made without their setting",
        columns(
            "profile",
            Column("held_out", "held out", "count"),
            Column("width", "90% interval, up to", "share"),
            *(Column(key, f"of {level:.0%} intervals", "share") for level, key in keys.items()),
        ),
        tuple(rows),
    )


def _constants(profiles: Sequence[str]) -> ExhibitTable:
    """All constants; those without low and high are fixed."""
    rows = []
    for name in profiles:
        for key, constant in profile(name).constants.items():
            term = term_of(key)
            assert term is not None  # a profile has no other
            rows.append(
                {
                    "profile": name,
                    "constant": key,
                    "value": constant.value,
                    "low": constant.low,
                    "high": constant.high,
                    "unit": term.unit,
                    "meaning": term.meaning,
                }
            )
    return ExhibitTable(
        "Constants of the profiles, with 90% confidence intervals where they are fitted",
        columns(
            "profile",
            "constant",
            *(Column(key, key, "number") for key in ("value", "low", "high")),
            Column("unit", "unit"),
            Column("meaning", "meaning"),
        ),
        tuple(rows),
    )


def _reasons(profiles: Sequence[str]) -> ExhibitTable:
    """Why those constants are fixed that are."""
    return ExhibitTable(
        "Why constants are fixed and not fitted",
        columns("profile", "constant", Column("fixed", "because", "prose")),
        tuple(
            {"profile": name, "constant": key, "fixed": constant.fixed}
            for name in profiles
            for key, constant in profile(name).constants.items()
            if constant.fixed is not None
        ),
    )
