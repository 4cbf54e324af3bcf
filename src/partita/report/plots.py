"""Plots as plain values, and drawing them with matplotlib into a PNG or SVG file.

matplotlib is imported by the functions that draw, so that building a plot costs nothing.
"""

from __future__ import annotations

import io
import logging
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from partita.errors import InputError
from partita.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["bound", "estimate", "count", "published"]
"""What no run can beat, what a run is expected to reach, a plain count, or what somebody measured."""

Scale = Literal["linear", "log", "log2"]
SUFFIXES = (".png", ".svg")
_DOTS_PER_INCH = 130
_CHARACTERS = {"title": 11.2, "caption": 17.6}  # to an inch of the figure's width


@dataclass(frozen=True)
class Series:
    """Points in the order they are joined; those of kind "published" are not joined."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    kind: Kind = "bound"
    labels: tuple[str, ...] = ()  # of the points; none, or one each (empty: no label)
    hollow: tuple[bool, ...] = ()  # points that cannot be run; none, or one each
    colour: int = 0
    dashed: bool = False
    band: tuple[tuple[float, float], ...] = ()  # corners of the area the points may lie in, all around it


@dataclass(frozen=True)
class ReferenceLine:
    """A dotted line across the panel where `axis` has this value; its label is at the line's start or end."""

    axis: Literal["x", "y"]
    value: float
    label: str
    at: Literal["start", "end"] = "start"


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `percent` writes the y axis, whose values are shares of 1, in percent; `headroom` is
    free space above the highest point, as a share of the axis, for the legend."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    lines: tuple[ReferenceLine, ...] = ()
    x_scale: Scale = "linear"
    y_scale: Scale = "linear"
    x_ticks: tuple[float, ...] = ()
    percent: bool = False
    headroom: float = 0.0


def check_path(path: Path, field: str = "plot") -> None:
    """Raises InputError on `field` unless the name ends in .png or .svg; for a check before long work."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(field, path, f"accepted are names that end in {' or '.join(SUFFIXES)}")


def save(figure: Figure, path: Path, field: str = "plot") -> None:
    """Writes a figure as PNG or SVG, by the suffix; the same figure gives the same file.

    Raises InputError on `field` for another suffix and where the file cannot be written.
    """
    import matplotlib

    check_path(path, field)
    written, kind = io.BytesIO(), path.suffix.lower().removeprefix(".")
    with matplotlib.rc_context({"svg.hashsalt": "partita", "svg.fonttype": "none"}):
        figure.savefig(
            written, format=kind, dpi=_DOTS_PER_INCH, metadata={"Date": None} if kind == "svg" else {}
        )
    write_whole(path, written.getvalue(), field)


def draw(panels: Sequence[Panel], *, title: str, caption: Sequence[str] = ()) -> Figure:
    """A figure with the panels in rows of two, and the caption's paragraphs below them.

    Panels that show the same series share one legend. Raises ValueError for no panels.
    """
    if not panels:
        raise ValueError("a figure needs a panel")
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it reports its first start
    from matplotlib.figure import Figure

    from partita.report.plot_drawing import draw_legend, draw_panel, label_points

    shared = len(panels) > 1 and len({tuple(s.label for s in panel.series) for panel in panels}) == 1
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    width = 7.4 if columns == 1 else 6.1 * columns + 1.5 * shared
    text = "\n".join(textwrap.fill(paragraph, int(_CHARACTERS["caption"] * width)) for paragraph in caption)
    title = textwrap.fill(title, int(_CHARACTERS["title"] * width))
    figure = Figure((width, 0.6 + 4.4 * rows + 0.15 * text.count("\n")), layout="constrained")
    figure.suptitle(title, fontsize=10, fontweight="bold")
    if text:
        figure.supxlabel(text, x=0.01, ha="left", fontsize=7.5, color="#333333")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in axes[len(panels) :]:
        unused.set_axis_off()
    for ax, panel in zip(axes, panels, strict=False):
        draw_panel(ax, panel, legend=not shared)
    if shared:
        draw_legend(figure, axes[0], panels[0])
    figure.draw_without_rendering()  # settles where everything is; labels are placed by that
    for ax, panel in zip(axes, panels, strict=False):
        label_points(ax, panel)
    return figure
