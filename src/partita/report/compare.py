"""Two plans side by side as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from partita.advice.compare import ComparedFigure, Comparison
from partita.report.tables import plain_table
from partita.specs.units import format_bytes, format_count, format_seconds

_LABELS = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "switch": "switch between the layouts",
    "latency": "latency of a request",
    "cost": "chip-ms per output token",
    "price_per_million_output_tokens": "price of a million output tokens",
    "throughput": "output tokens/s",
    "context": "longest context",
    "batch": "largest batch",
}


def comparison(found: Comparison, a: str = "A", b: str = "B") -> Group:
    """The settings that differ, the layouts, then every figure; `a` and `b` name the plans.

    Times and what follows from them are shown by the estimate, where both plans have one, and by the bound.
    """
    asked = plain_table("setting", a, b, cut=("setting",))
    for name, (mine, theirs) in found.setting.items():
        asked.add_row(name, Text(_short(mine)), Text(_short(theirs)))
    layouts = plain_table("layout", a, b, cut=("layout",))
    for phase, (mine, theirs) in found.layouts.items():
        layouts.add_row(phase, Text(mine), Text(theirs))
    parts: list[RenderableType] = [
        asked if found.setting else Text("setting: the same for both"),
        Text(),
        layouts,
    ]
    for name, figures in (("estimated", found.estimates), ("bound", found.figures)):
        if figures:
            parts += [Text(), _figures(name, figures, a, b)]
    return Group(*parts, Text(NOTE, style="dim"))


def _figures(name: str, figures: Sequence[ComparedFigure], a: str, b: str) -> Table:
    table = plain_table(name, a, b, "better", right=(a, b), cut=(name, "better"))
    for figure in figures:
        table.add_row(
            label(figure), _value(figure, figure.a), _value(figure, figure.b), _verdict(figure, a, b)
        )
    return table


NOTE = "Times, costs and MFU under bound are bounds. `partita glossary` defines these and every other figure."


def label(figure: ComparedFigure) -> str:
    """What a figure is called in a table."""
    if figure.name in _LABELS:
        return _LABELS[figure.name]
    phase, _, what = figure.name.partition("_")
    kind, _, part = what.partition("_")
    if kind == "memory":
        return f"{phase} memory per chip: {part}"
    return f"{phase} MFU" if kind == "mfu" else figure.name


def _verdict(figure: ComparedFigure, a: str, b: str) -> str:
    winner, change = figure.winner, figure.change
    if winner is None or change is None:
        return "same" if figure.better and winner is None else ""
    # by how much the better one is less, or more
    better, worse = (figure.a, figure.b) if winner == "a" else (figure.b, figure.a)
    by = f"{abs(better / worse - 1):.1%} {'less' if better < worse else 'more'}" if worse else "more"
    return f"{a if winner == 'a' else b}: {by}"


def _value(figure: ComparedFigure, value: float) -> str:
    match figure.unit:
        case "seconds":
            return format_seconds(value)
        case "chip-seconds":
            return f"{value * 1e3:.3g}"
        case "bytes":
            return format_bytes(value)
        case "share":
            return f"{value:.1%}"
        case _:
            return format_count(value)


def _short(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
