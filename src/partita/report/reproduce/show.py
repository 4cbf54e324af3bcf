"""An exhibit for people: its tables and caption for the terminal, its panels as a picture."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from partita.report.plots import draw
from partita.report.reproduce.exhibit import Column, Exhibit, Rows
from partita.report.tables import columns
from partita.specs.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PROSE = 100
"""Characters a line."""


def picture(exhibit: Exhibit) -> Figure:
    """The panels with title and caption."""
    return draw(exhibit.panels, title=exhibit.title, caption=exhibit.caption)


def as_text(exhibit: Exhibit) -> Group:
    """Title, tables and caption."""
    parts: list[RenderableType] = [Text(exhibit.title, style="bold")]
    for table in exhibit.tables:
        parts += [Text(), Text(table.title, style="italic"), _table(table)]
    parts += [Text(), *(Text(paragraph) for paragraph in exhibit.caption)]
    return Group(*parts)


def _table(rows: Rows):
    right = tuple(c.heading for c in rows.columns if c.form not in ("text", "prose"))
    table = columns(*(c.heading for c in rows.columns), right=right)
    for row in rows.rows:
        table.add_row(*(Text(cell(column, row.get(column.key))) for column in rows.columns))
    return table


def cell(column: Column, value: Any) -> str:
    """One value as people read it; a dash where there is none."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    match column.form:
        case "prose":
            return textwrap.fill(value, _PROSE)
        case "count":
            return f"{value:,.0f}"
        case "seconds":
            return format_seconds(value)
        case "share":
            return f"{value:.1%}"
        case "ratio":
            return f"{value:.2f}"
        case "number":
            return f"{value:.3g}"
    return str(value)
