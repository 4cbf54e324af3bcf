"""How close estimates come to published times: every cell, and the errors by table.

Knows nothing about how the numbers were made, nor what is known of the profiles (`fidelity_profiles.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.report.reproduce.exhibit import Column, Exhibit, Rows
from partita.report.reproduce.fidelity_cells import Cell, cells
from partita.report.reproduce.fidelity_panels import calibration, scatter
from partita.report.reproduce.fidelity_profiles import constants, coverage, reasons, settings
from partita.report.reproduce.published import published
from partita.specs.catalogue import profile


def build() -> Exhibit:
    found = cells()
    profiles = tuple(dict.fromkeys(cell.profile for cell in found))
    return Exhibit(
        name="fidelity",
        title="Fidelity: published times beside their bounds and estimates",
        caption=(
            "Bound: the roofline at peak rates, which no run can beat. Estimate: the same counts through a "
            "profile of efficiencies fitted to the cells marked so, with a 90% interval made from times "
            "left out of a fit. Error: estimate over published, less 1. Of cells that were fitted to it says "
            "how well a few constants describe them, of the others how well they foretell.",
            *(f"{name}: {profile(name).source}." for name in profiles),
            f"Provenance: Table 2 {published('table2').provenance}; Table D.2 (20/8) "
            f"{published('ours-20-8').provenance}; FasterTransformer: its guide. "
            "Settings are left out whole, and judged by intervals made without them; the held-out steps of "
            "tpu-v5e gave its interval, so none is left to check it.",
        ),
        panels=(scatter(found), calibration(profiles)),
        tables=(
            _by_table(found),
            settings(profiles),
            coverage(profiles),
            constants(profiles),
            reasons(profiles),
            _cells(found),
        ),
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
