"""Draws one panel of a plot on matplotlib axes: scales, series, reference lines, and labels beside points.

Only `plots.draw` imports it, since it needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    NullFormatter,
    NullLocator,
    PercentFormatter,
)

from partita.report.plots import Panel, ReferenceLine, Scale, Series
from partita.report.point_labels import Box, Label, along, place

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, told apart by colour-blind readers too."""

FONT_SIZE = 6.5  # of labels beside points
_STAR = 5.0  # half the width of a published point's star, in font points


def draw_panel(ax: Axes, panel: Panel, legend: bool) -> None:
    """Everything but the labels of points, which `label_points` writes later."""
    ax.set_title(panel.title, fontsize=9.5)
    ax.set_xlabel(panel.x_label, fontsize=9)
    ax.set_ylabel(panel.y_label, fontsize=9)
    ax.tick_params(labelsize=8)
    ax.grid(True, which="major", color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    _scale(ax, "x", panel.x_scale, panel.x_ticks)
    _scale(ax, "y", panel.y_scale)
    for series in panel.series:
        _draw_series(ax, series, name_kind=len(_line_kinds(panel)) > 1)
    if panel.percent:
        most = max((y for series in panel.series for y in series.y), default=1.0)
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if most > 0.05 else None))
    ax.margins(x=0.09)
    _stretch(ax, panel)
    for axis, scale, ticks in ((ax.xaxis, panel.x_scale, panel.x_ticks), (ax.yaxis, panel.y_scale, ())):
        if scale == "log" and not ticks:
            low, high = axis.get_view_interval()
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 2e3 * low else (1,)))
    low, high = ax.get_ylim()
    heights = [line.value for line in panel.lines if line.axis == "y"]
    for line in panel.lines:
        near = any(0 < (height - line.value) / (high - low) < 0.045 for height in heights)
        _draw_line(ax, line, below=near)
    if panel.series and legend:
        ax.legend(**_legend_style(panel))


def draw_legend(figure: Figure, ax: Axes, panel: Panel) -> None:
    """A panel's legend beside all panels."""
    handles, names = ax.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", **_legend_style(panel))


def _legend_style(panel: Panel) -> dict[str, Any]:
    return {"fontsize": 7.5, "framealpha": 0.85, "title": _legend_title(panel), "title_fontsize": 7.5}


def _legend_title(panel: Panel) -> str:
    """What the lines are, where they are all of one kind, and what hollow points mean."""
    kinds = _line_kinds(panel)
    lines = [f"lines: {kind}" for kind in kinds] if len(kinds) == 1 else []
    hollow = any(any(series.hollow) for series in panel.series)
    return "; ".join(lines + ["hollow: does not fit"] * hollow)


def _line_kinds(panel: Panel) -> list[str]:
    return sorted({series.kind for series in panel.series} - {"published"})


def _draw_series(ax: Axes, series: Series, name_kind: bool) -> None:
    colour = _COLOURS[series.colour % len(_COLOURS)]
    if series.kind == "published":
        ax.plot(
            series.x,
            series.y,
            linestyle="none",
            marker="*",
            markersize=11,
            markerfacecolor=colour,
            markeredgecolor="black",
            markeredgewidth=0.6,
            label=f"{series.label} (published)",
            zorder=4,
        )
        return
    if series.band:
        corners: Any = list(zip(*series.band, strict=True))
        ax.fill(*corners, facecolor=colour, edgecolor=colour, linewidth=0.5, alpha=0.18, zorder=1)
    style = "dashed" if series.dashed else "solid"
    name = f"{series.label} ({series.kind})" if name_kind and series.label != series.kind else series.label
    width, marker = (1.4, "o") if series.kind == "bound" else (1.8, "s")
    ax.plot(
        series.x,
        series.y,
        linestyle=style,
        linewidth=width,
        color=colour,
        marker=marker,
        markersize=3.5,
        label=name,
    )
    empty = [i for i, hollow in enumerate(series.hollow) if hollow]
    ax.plot(
        [series.x[i] for i in empty],
        [series.y[i] for i in empty],
        linestyle="none",
        marker=marker,
        markersize=5.5,
        markerfacecolor="white",
        markeredgecolor=colour,
    )


def _stretch(ax: Axes, panel: Panel) -> None:
    """A linear y axis from 0, and the headroom."""
    low, high = ax.get_ylim()
    if panel.y_scale == "linear":
        ax.set_ylim(0, high + panel.headroom * high)
    else:
        ax.set_ylim(low, high * (high / low) ** panel.headroom)


def _draw_line(ax: Axes, line: ReferenceLine, below: bool) -> None:
    """The line and its label; `below` writes the label under a line that has another close above it."""
    style: dict[str, Any] = {"color": "#666666", "linestyle": "dotted", "linewidth": 1}
    text: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "color": "#444444"}
    end = line.at == "end"
    if line.axis == "x":
        ax.axvline(line.value, **style)
        text |= {"rotation": 90, "va": "top" if end else "bottom", "xytext": (3, 0)}
        ax.annotate(
            line.label, (line.value, 0.98 if end else 0.02), xycoords=("data", "axes fraction"), **text
        )
    else:
        ax.axhline(line.value, **style)
        text |= {"ha": "right" if end else "left", "va": "top" if below else "bottom"}
        text |= {"xytext": (0, -2 if below else 1)}
        ax.annotate(
            line.label, (0.99 if end else 0.01, line.value), xycoords=("axes fraction", "data"), **text
        )


def _scale(ax: Axes, which: Literal["x", "y"], scale: Scale, ticks: Sequence[float] = ()) -> None:
    axis = ax.xaxis if which == "x" else ax.yaxis
    if scale != "linear":
        (ax.set_xscale if which == "x" else ax.set_yscale)("log", base=2 if scale == "log2" else 10)
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
        axis.set_minor_locator(NullLocator())
    if ticks:
        axis.set_major_locator(FixedLocator(list(ticks)))


def label_points(ax: Axes, panel: Panel) -> None:
    """Writes the labels that find room; to be called once the figure has its final extent."""
    legend, scale = ax.get_legend(), ax.get_figure(root=True).dpi / 72  # type: ignore[union-attr]
    taken = [Box(*legend.get_window_extent().extents)] if legend else []
    covered, labels, where = [], [], []
    for series in sorted(panel.series, key=lambda s: s.kind != "published"):  # these choose first
        dots = [tuple(ax.transData.transform(point)) for point in zip(series.x, series.y, strict=True)]
        star = series.kind == "published"
        if star:
            taken += [
                Box(x - _STAR * scale, y - _STAR * scale, x + _STAR * scale, y + _STAR * scale)
                for x, y in dots
            ]
        else:
            covered += along(dots)
        for place_of, x, y, text in zip(dots, series.x, series.y, series.labels, strict=False):
            if text:
                labels.append(Label(text, place_of, gap=_STAR + 1 if star else 3.0))
                where.append((x, y, _COLOURS[series.colour % len(_COLOURS)]))
    offsets = place(labels, covered, taken, Box(*ax.get_window_extent().extents), scale, FONT_SIZE)
    for label, (x, y, colour), offset in zip(labels, where, offsets, strict=True):
        if offset is not None:
            style: dict[str, Any] = {"fontsize": FONT_SIZE, "color": colour, "ha": "left", "va": "bottom"}
            written = ax.annotate(label.text, (x, y), xytext=offset, textcoords="offset points", **style)
            written.set_in_layout(False)  # else the axes would move away from it
