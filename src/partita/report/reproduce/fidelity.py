"""How close estimates come to published times: every cell, the errors by table, and a calibration plot.

Knows nothing about how the numbers were made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from partita.report.plots import Panel, Rule, Series
from partita.report.reproduce.exhibit import Column, Exhibit, Rows
from partita.report.reproduce.fidelity_cells import Cell, cells
from partita.report.reproduce.published import published
from partita.specs.catalogue import profile
from partita.specs.profile import term_of


def build() -> Exhibit:
    found = cells()
    profiles = tuple(dict.fromkeys(cell.profile for cell in found))
    return Exhibit(
        name="fidelity",
        title="Fidelity: published times beside their bounds and estimates",
        caption=(
            "Bound: the roofline at peak rates, which no run can beat. Estimate: the same counts through a "
            "profile of efficiencies fitted to the cells marked so, with an interval that holds 90% of times "
            "left out of a fit. Error: estimate over published, less 1. Of cells that were fitted to it says "
            "how well a few constants describe them, of the others how well they foretell.",
            *(f"{name}: {profile(name).source}." for name in profiles),
            f"Provenance: Table 2 {published('table2').provenance}; Table D.2 (20/8) "
            f"{published('ours-20-8').provenance}; FasterTransformer: its guide. A constant without low and "
            "high is fixed, not fitted; the profile's file in the catalogue says why.",
        ),
        panels=_panels(found, profiles),
        tables=(_by_table(found), _constants(profiles), _cells(found)),
    )


def _by_table(found: tuple[Cell, ...]) -> Rows:
    """Tables first, then all cells of each profile."""
    groups: dict[tuple[str, bool], list[Cell]] = {}
    for cell in found:
        groups.setdefault((cell.table, cell.fitted), []).append(cell)
    for cell in found:
        groups.setdefault((f"{cell.profile}, all", cell.fitted), []).append(cell)
    return Rows(
        "Errors by table",
        (
            Column("table", "table"),
            Column("fitted", "fitted to"),
            Column("cells", "cells", "count"),
            Column("median_error", "median error", "share"),
            Column("mean_error", "mean", "share"),
            Column("p90_error", "90th percentile", "share"),
            Column("worst_error", "worst", "share"),
            Column("inside", "in the interval", "share"),
            Column("least_published_over_bound", "published / bound, least", "ratio"),
        ),
        tuple(_errors(table, fitted, group) for (table, fitted), group in groups.items()),
    )


def _errors(table: str, fitted: bool, group: list[Cell]) -> dict[str, Any]:
    sizes = np.abs([cell.error for cell in group])
    return {
        "table": table,
        "fitted": fitted,
        "cells": len(group),
        "median_error": float(np.median(sizes)),
        "mean_error": float(np.mean(sizes)),
        "p90_error": float(np.quantile(sizes, 0.9)),
        "worst_error": float(np.max(sizes)),
        "inside": float(np.mean([cell.inside for cell in group])),
        "least_published_over_bound": min(cell.published / cell.bound for cell in group),
    }


def _constants(profiles: Iterable[str]) -> Rows:
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
    return Rows(
        "Constants of the profiles, with 90% confidence intervals",
        (
            Column("profile", "profile"),
            Column("constant", "constant"),
            Column("value", "value", "number"),
            Column("low", "low", "number"),
            Column("high", "high", "number"),
            Column("unit", "unit"),
            Column("meaning", "meaning"),
        ),
        tuple(rows),
    )


def _cells(found: tuple[Cell, ...]) -> Rows:
    return Rows(
        "Every cell",
        (
            Column("table", "table"),
            Column("cell", "cell"),
            Column("fitted", "fitted to"),
            Column("bound_seconds", "bound", "seconds"),
            Column("estimate_seconds", "estimate", "seconds"),
            Column("low_seconds", "low", "seconds"),
            Column("high_seconds", "high", "seconds"),
            Column("published_seconds", "published", "seconds"),
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


def _panels(found: tuple[Cell, ...], profiles: tuple[str, ...]) -> tuple[Panel, ...]:
    """Published over estimated against what was estimated, and how often intervals of each width hold."""
    spread = tuple(
        Series(
            name,
            tuple(cell.estimate for cell in found if cell.profile == name),
            tuple(cell.published / cell.estimate for cell in found if cell.profile == name),
            kind="published",
            colour=i,
        )
        for i, name in enumerate(profiles)
    )
    shares = tuple(i / 20 for i in range(1, 21))
    held = tuple(
        Series(name, shares, tuple(_held(found, name, share) for share in shares), "estimate", colour=i)
        for i, name in enumerate(profiles)
    )
    return (
        Panel(
            title="Published over estimated",
            x_label="Estimate (s)",
            y_label="published / estimate",
            series=spread,
            rules=(Rule("y", 1.0, "as estimated"),),
            x_scale="log",
        ),
        Panel(
            title="Calibration: published times within a part of the interval",
            x_label="part of the 90% interval's width",
            y_label="share of times inside",
            series=held,
            rules=(Rule("y", 0.9, "90%"),),
            percent=True,
        ),
    )


def _held(found: tuple[Cell, ...], name: str, share: float) -> float:
    """The share of a profile's cells within `share` of the interval's logarithmic width."""
    inside = [
        abs(np.log(cell.published / cell.estimate)) <= share * np.log(cell.high / cell.estimate)
        for cell in found
        if cell.profile == name
    ]
    return float(np.mean(inside))
