"""The Pareto frontier of a plan, as a table and as a plot. Knows nothing about how it was found."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from rich.text import Text

from partita.cost.setting import Phase
from partita.planner.frontier import Point
from partita.planner.plan import Plan
from partita.report.plots import Panel, Series, draw, save
from partita.report.tables import columns
from partita.specs.units import format_seconds

PHASES: tuple[Phase, ...] = ("decode", "prefill")
_TIMES = {"decode": "seconds per generated token (one step)", "prefill": "seconds per prefill"}


def frontier_table(plan: Plan, most: int = 8) -> Table:
    """At most `most` points a phase, spread evenly; all of them are in the JSON."""
    right = ("chips", "batch", "time, bound", "chip-ms per token", "MFU, at most")
    table = columns("frontier", "chips", "batch", "layout", "time, bound", *right[3:], right=right)
    for phase in PHASES:
        points = [point for point in plan.frontier if point.prediction.phase == phase]
        if len(points) > most:
            points = [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]
        for point in points:
            prediction = point.prediction
            table.add_row(
                phase,
                f"{prediction.setting.cluster.chips:,}",
                f"{prediction.batch:,}",
                Text(f"{prediction.layout.roles}, mesh {prediction.setting.mesh}"),
                format_seconds(point.seconds),
                f"{point.chip_seconds_per_token * 1e3:.3g}",
                f"{prediction.bound_mfu:.1%}",
            )
    return table


def plot_frontier(plan: Plan, path: Path) -> None:
    """Latency against cost and against MFU, a panel each for both phases; raises InputError as `save` does."""
    points = {phase: [x for x in plan.frontier if x.prediction.phase == phase] for phase in PHASES}
    panels = []
    for phase in PHASES:
        panels += [_panel(phase, points[phase], mfu=False), _panel(phase, points[phase], mfu=True)]
    setting = plan.decode.setting
    names = sorted(
        {(p.prediction.setting.cluster.chips, p.prediction.setting.cluster.name) for p in plan.frontier}
    )
    chips = names[0][1] if len(names) == 1 else f"{names[0][1]} to {names[-1][1]}"
    workload = setting.workload
    caption = (
        f"Bounds: no run on these chips is faster or cheaper. Prompts of {workload.prompt:,} tokens, cache of "
        f"{workload.context:,}. Each point is one phase in its own best layout; C chips, B batch.",
    )
    save(draw(panels, title=f"{setting.model.name} on {chips}: Pareto frontier", caption=caption), path)


def _panel(phase: Phase, points: list[Point], *, mfu: bool) -> Panel:
    labels = tuple(_label(point) for point in points)
    values = tuple(p.prediction.bound_mfu if mfu else p.chip_seconds_per_token * 1e3 for p in points)
    series = Series("bound", tuple(p.seconds for p in points), values, labels=labels)
    return Panel(
        title=f"{phase}: {'MFU' if mfu else 'cost'} against latency",
        x_label=_TIMES[phase],
        y_label="MFU, at most" if mfu else "chip-milliseconds per token, at least",
        series=(series,),
        x_scale="log",
        y_scale="linear" if mfu else "log",
        percent=mfu,
    )


def _label(point: Point) -> str:
    return f"C:{point.prediction.setting.cluster.chips}, B:{point.prediction.batch}"
