"""The Pareto frontier of a plan, as a table and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table
from rich.text import Text

from partita.cost.prediction import Prediction
from partita.planner.frontier import Point
from partita.planner.pair import Basis
from partita.planner.plan import Plan
from partita.report.plots import Panel, Series, draw, save
from partita.report.predictions import phase_text, step_text
from partita.report.tables import layout_text, plain_table
from partita.specs.profile import Phase
from partita.specs.units import format_seconds

PHASES: tuple[Phase, ...] = ("decode", "prefill")
_TIMES = {"decode": "seconds per generated token (one step)", "prefill": "seconds per prefill"}
_BOUND = "Bounds: no run that waits for its communication is faster or cheaper."
_ESTIMATE = (
    "Estimates, in a band of their 90% ranges, beside the "
    "bounds of the same layouts, which no run that waits for its communication beats."
)


def _times(plan: Plan) -> tuple[Basis, ...]:
    """Which times its points have; the one that the plan is ranked by comes first."""
    if plan.decode.estimate is None:
        return ("bound",)
    return ("estimate", "bound") if plan.ranked_by == "estimate" else ("bound", "estimate")


def frontier_table(plan: Plan, most: int = 8) -> Table:
    """At most `most` points a phase, spread evenly; all of them are in the JSON.

    Cost and MFU follow from the time that the plan is ranked by, the first.
    """
    times = _times(plan)
    names = {"bound": "time, bound", "estimate": "time, estimated"}
    cost, mfu = "chip-ms per token", "MFU, estimated" if times[0] == "estimate" else "MFU, at most"
    right = ("chips", "batch", *(names[basis] for basis in times), cost, mfu)
    table = plain_table("frontier", "chips", "batch", "layout", *right[2:], right=right)
    for phase in PHASES:
        points = [point for point in plan.frontier if point.prediction.phase == phase]
        if len(points) > most:
            points = [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]
        for point in points:
            prediction, merit = point.prediction, replace(point, basis=times[0])
            table.add_row(
                phase,
                f"{prediction.setting.cluster.chips:,}",
                f"{prediction.batch:,}",
                _layout(prediction),
                *(_time(point, basis) for basis in times),
                f"{merit.chip_seconds_per_token * 1e3:.3g}",
                f"{merit.mfu:.1%}",
            )
    return table


def _time(point: Point, basis: Basis) -> str:
    if basis == "bound":
        return format_seconds(replace(point, basis=basis).seconds)
    say = step_text if point.prediction.phase == "decode" else phase_text
    return say(point.prediction.estimate)


def _layout(prediction: Prediction) -> Text:
    setting = prediction.setting
    stages = f", {setting.stages} stages" if setting.stages > 1 else ""
    text = layout_text(prediction.layout.roles)
    joint = ",\n" if "\n" in text.plain else ", "
    return text.append(f"{joint}mesh {setting.mesh}{stages}")


def plot_frontier(plan: Plan, path: Path) -> None:
    """Latency against cost and against MFU, a panel each for both phases. Errors as those of `save`."""
    times, setting = _times(plan), plan.decode.setting
    names = sorted(
        {(p.prediction.setting.cluster.chips, p.prediction.setting.cluster.name) for p in plan.frontier}
    )
    chips = names[0][1] if len(names) == 1 else f"{names[0][1]} to {names[-1][1]}"
    workload = setting.workload
    caption = (
        f"{_BOUND if len(times) == 1 else _ESTIMATE} Prompts of {workload.prompt:,} tokens, cache of "
        f"{workload.context:,}. Each point is one phase in its own best layout by the {times[0]}; "
        "C chips, B batch.",
    )
    save(draw(panels(plan), title=f"{setting.model.name} on {chips}: Pareto frontier", caption=caption), path)


def panels(plan: Plan) -> list[Panel]:
    """Cost against latency, then MFU against latency, for each phase."""
    points = {phase: [x for x in plan.frontier if x.prediction.phase == phase] for phase in PHASES}
    times = _times(plan)
    return [_panel(phase, points[phase], times, mfu=mfu) for phase in PHASES for mfu in (False, True)]


def _panel(phase: Phase, points: Sequence[Point], times: Sequence[Basis], *, mfu: bool) -> Panel:
    what, limit = ("MFU", "at most") if mfu else ("chip-milliseconds per token", "at least")
    return Panel(
        title=f"{phase}: {'MFU' if mfu else 'cost'} against latency",
        x_label=_TIMES[phase],
        y_label=f"{what}, {limit}" if len(times) == 1 else what,
        series=tuple(_series(points, basis, mfu=mfu, labelled=basis == times[0]) for basis in times),
        x_scale="log",
        y_scale="linear" if mfu else "log",
        percent=mfu,
    )


def _series(points: Sequence[Point], basis: Basis, *, mfu: bool, labelled: bool) -> Series:
    """The points by one of their times; around estimates the area that their ranges cover."""
    priced = [replace(point, basis=basis) for point in points]
    x = tuple(point.seconds for point in priced)
    y = tuple(point.mfu if mfu else point.chip_seconds_per_token * 1e3 for point in priced)
    low, high = [], []
    for point, seconds, value in zip(points, x, y, strict=True):
        estimate = point.prediction.estimate
        if basis == "estimate" and estimate is not None:
            around = estimate.step_interval if point.prediction.phase == "decode" else estimate.total_interval
            for end, reached in zip((low, high), around, strict=True):
                factor = reached / seconds
                end.append((reached, value / factor if mfu else value * factor))
    labels = tuple(_label(point) for point in points) if labelled else ()
    return Series(
        basis, x, y, basis, labels=labels, colour=0 if basis == "bound" else 1, band=(*low, *reversed(high))
    )


def _label(point: Point) -> str:
    return f"C:{point.prediction.setting.cluster.chips}, B:{point.prediction.batch}"
