"""What reproducing a table or figure of the paper gives: panels, tables and a caption; and its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from partita.report.plots import Panel

SCHEMA = "partita.reproduce/1"
Form = Literal["text", "prose", "count", "seconds", "share", "ratio", "number"]
"""How people are shown a value. In JSON `seconds` are seconds and a `share` is a part of 1."""

BOUND = (
    "Predictions are bounds: the paper's roofline at peak rates, communication added and sent as bf16; no "
    "run that waits for its communication can be faster, so published times lie above them and published "
    "MFUs below."
)


@dataclass(frozen=True)
class Column:
    """`key` names the value in a row, `heading` is for people."""

    key: str
    heading: str
    form: Form = "text"


_COLUMNS = {
    column.key: column
    for column in (
        Column("batch", "batch", "count"),
        Column("binds", "limited by"),
        Column("bound_chip_seconds_per_token", "cost, chip-s per token, at least", "number"),
        Column("bound_mfu", "MFU, at most", "share"),
        Column("bound_seconds", "bound", "seconds"),
        Column("bound_seconds_per_token", "per token, bound", "seconds"),
        Column("chips", "chips", "count"),
        Column("constant", "constant"),
        Column("context", "context", "count"),
        Column("fits", "fits"),
        Column("fitted", "fitted to"),
        Column("head_dim", "head dim", "count"),
        Column("inside", "in the interval", "share"),
        Column("layout", "layout"),
        Column("median_error", "median error", "share"),
        Column("model", "model"),
        Column("phase", "phase"),
        Column("profile", "profile"),
        Column("published_max_context", "published", "count"),
        Column("published_mfu", "published MFU", "share"),
        Column("published_over_bound", "published / bound", "ratio"),
        Column("published_seconds", "published", "seconds"),
        Column("scenario", "scenario"),
        Column("system", "system"),
        Column("table", "table"),
        Column("tokens", "tokens", "count"),
        Column("variant", "variant"),
        Column("weights", "weights"),
        Column("worst_error", "worst", "share"),
    )
}
"""The columns that several tables have."""


def columns(*which: str | Column, **headings: str) -> tuple[Column, ...]:
    """Columns in this order: shared ones by their keys, others as they are. `headings` are for shared columns
    whose heading is another in this table."""
    found = (_COLUMNS[each] if isinstance(each, str) else each for each in which)
    return tuple(replace(each, heading=headings.get(each.key, each.heading)) for each in found)


@dataclass(frozen=True)
class ExhibitTable:
    """A table of an exhibit. A row maps the columns' keys to values and may hold more; a missing key or None
    means that there is no value."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Any], ...]

    def as_json(self) -> dict[str, Any]:
        """Its values by key, row by row, beside what the keys mean."""
        keys = [column.key for column in self.columns]
        return {
            "title": self.title,
            "columns": [{"key": c.key, "heading": c.heading, "form": c.form} for c in self.columns],
            "rows": [{key: row.get(key) for key in keys} for row in self.rows],
        }


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of the paper, predicted, beside what is published of it."""

    name: str
    title: str
    caption: tuple[str, ...]
    panels: tuple[Panel, ...] = ()
    tables: tuple[ExhibitTable, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """One of the exhibits of the object `reproduce --json` prints; its keys are stable."""
        return {
            "name": self.name,
            "title": self.title,
            "caption": list(self.caption),
            "panels": [_panel(panel) for panel in self.panels],
            "tables": [table.as_json() for table in self.tables],
        }


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "title": panel.title,
        "x": panel.x_label,
        "y": panel.y_label,
        "series": [
            {
                "label": series.label,
                "kind": series.kind,
                "x": list(series.x),
                "y": list(series.y),
                "labels": list(series.labels),
                "does_not_fit": list(series.hollow),
            }
            for series in panel.series
        ],
        "rules": [{"axis": line.axis, "value": line.value, "label": line.label} for line in panel.lines],
    }


def ratio(published: float | None, predicted: float) -> float | None:
    """Published over predicted; None where nothing is published."""
    return None if published is None else published / predicted
