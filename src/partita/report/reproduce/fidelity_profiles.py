"""What is known of the profiles: constants with their intervals, and what fits foretold of settings left out.

Reads the catalogue; knows nothing about cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from partita.cost.interval import half_width
from partita.report.reproduce.exhibit import Column, Rows
from partita.specs.catalogue import profile
from partita.specs.profile import COVERAGES, term_of


def constants(profiles: Iterable[str]) -> Rows:
    """All of them; those without low and high are fixed."""
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
        "Constants of the profiles, with 90% confidence intervals where they are fitted",
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


def reasons(profiles: Iterable[str]) -> Rows:
    """Of the constants that are fixed."""
    return Rows(
        "Why constants are fixed and not fitted",
        (Column("profile", "profile"), Column("constant", "constant"), Column("fixed", "because", "prose")),
        tuple(
            {"profile": name, "constant": key, "fixed": constant.fixed}
            for name in profiles
            for key, constant in profile(name).constants.items()
            if constant.fixed is not None
        ),
    )


def settings(profiles: Iterable[str]) -> Rows:
    """Each left out whole, and foretold by a fit to all others."""
    return Rows(
        "Settings left out, foretold by a fit to all others",
        (
            Column("profile", "profile"),
            Column("setting", "left out"),
            Column("count", "times", "count"),
            Column("median_error", "median error", "share"),
            Column("worst_error", "worst", "share"),
            Column("inside", "in the interval by others", "share"),
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


def coverage(profiles: Iterable[str]) -> Rows:
    """How often intervals held; nothing where what was held out gave their width, and no more was at hand."""
    rows = []
    for name in profiles:
        found = profile(name)
        width = half_width(found.residuals, held_out=found.held_out)
        shares = found.coverage or (None,) * len(COVERAGES)
        held = {_key(level): share for level, share in zip(COVERAGES, shares, strict=True)}
        held_out = found.held_out or len(found.residuals)
        rows.append({"profile": name, "held_out": held_out, "width": math.expm1(width), **held})
    return Rows(
        "Coverage: share of held-out times in intervals made without their setting",
        (
            Column("profile", "profile"),
            Column("held_out", "held out", "count"),
            Column("width", "90% interval, up to", "share"),
            *(Column(_key(level), f"of {level:.0%} intervals", "share") for level in COVERAGES),
        ),
        tuple(rows),
    )


def _key(level: float) -> str:
    return f"inside_{level * 100:.0f}"
