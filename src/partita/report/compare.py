"""Two plans side by side as a table. Knows nothing about how the numbers were made."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from partita.planner.compare import Comparison, Figure
from partita.specs.units import format_bytes, format_count, format_seconds

_LABELS = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "switch": "switch between the layouts",
    "latency": "latency of a request",
    "cost": "chip-ms per output token",
    "price_per_million_output_tokens": "price of a million output tokens",
    "throughput": "output tokens a second",
    "context": "longest context",
    "batch": "largest batch",
}


def comparison(found: Comparison, a: str = "A", b: str = "B") -> Group:
    """What was asked differently, the layouts, then every figure; `a` and `b` name the plans."""
    asked = _table("asked", a, b)
    for name, (mine, theirs) in found.setting.items():
        asked.add_row(name, Text(_short(mine)), Text(_short(theirs)))
    figures = _table("bound", a, b, "better", numbers=True)
    for phase, (mine, theirs) in found.layouts.items():
        figures.add_row(f"{phase} layout", Text(mine), Text(theirs), "")
    for figure in found.figures:
        figures.add_row(
            label(figure), _value(figure, figure.a), _value(figure, figure.b), _verdict(figure, a, b)
        )
    same = Text("asked: the same of both" if not found.setting else "")
    return Group(asked if found.setting else same, Text(), figures, Text(NOTE, style="dim"))


NOTE = "Times and costs are bounds. `partita glossary` defines these and every other figure."


def comparison_json(found: Comparison, a: str = "A", b: str = "B") -> dict[str, Any]:
    """The object `plan --compare --json` prints: `partita.comparison/1`."""
    return {**found.as_json(), "plans": {"a": a, "b": b}}


def label(figure: Figure) -> str:
    """What a figure is called in a table."""
    if figure.name in _LABELS:
        return _LABELS[figure.name]
    phase, _, what = figure.name.partition("_")
    kind, _, part = what.partition("_")
    if kind == "memory":
        return f"{phase} memory per chip: {part}"
    return f"{phase} MFU" if kind == "mfu" else figure.name


def _table(first: str, a: str, b: str, *more: str, numbers: bool = False) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for name in (a, b):
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for name in more:
        table.add_column(name)
    return table


def _verdict(figure: Figure, a: str, b: str) -> str:
    winner, change = figure.winner, figure.change
    if winner is None or change is None:
        return "same" if figure.better and winner is None else ""
    # by how much the better one is less, or more
    better, worse = (figure.a, figure.b) if winner == "a" else (figure.b, figure.a)
    by = f"{abs(better / worse - 1):.1%} {'less' if better < worse else 'more'}" if worse else "more"
    return f"{a if winner == 'a' else b}: {by}"


def _value(figure: Figure, value: float) -> str:
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
