"""What reproducing one table or figure gives: panels, tables and a caption; and its JSON form.

Knows nothing about how the numbers were made or how they are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from partita.report.plots import Panel

SCHEMA = "partita.reproduce/1"
Form = Literal["text", "prose", "count", "seconds", "share", "ratio", "number"]
"""How people are shown a value: `prose` in lines; in JSON `seconds` are seconds, `share` is a part of 1."""

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


@dataclass(frozen=True)
class Rows:
    """A table: rows map the columns' keys to values, None where there is none."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Any], ...]

    def as_json(self) -> dict[str, Any]:
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
    tables: tuple[Rows, ...] = ()

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
        "rules": [{"axis": rule.axis, "value": rule.value, "label": rule.label} for rule in panel.rules],
    }


def ratio(published: float | None, predicted: float) -> float | None:
    """Published over predicted; None where nothing is published."""
    return None if published is None else published / predicted
