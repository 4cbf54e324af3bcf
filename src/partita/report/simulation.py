"""A simulated load for people: a column for each policy, and a plot of what users see and what is held."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text

from partita.report.plots import Panel, ReferenceLine, Series, draw, save
from partita.report.tables import plain_table
from partita.simulation.result import PERCENTILES, Floats, Result
from partita.simulation.study import Study
from partita.specs.units import format_seconds

_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "end to end"}
_POINTS = 64
"""Points of a curve in a plot."""


def simulation_table(study: Study) -> Table:
    """A column for each policy."""
    results = [run.result for run in study.runs]
    table = plain_table("", *(result.policy for result in results))
    found = [result.percentiles() for result in results]
    for name, text in _NAMES.items():
        for i, part in enumerate(("mean", *(f"p{share}" for share in PERCENTILES))):
            title = f"{text}, {part}" if i == 0 else f"  {part}"
            table.add_row(title, *(Text(_time(each[name], part)) for each in found))
    rows = [
        ("requests a second", [f"{r.requests_per_second:,.3g}" for r in results]),
        ("output tokens a second", [f"{r.output_tokens_per_second:,.0f}" for r in results]),
    ]
    if study.limits.ttft is not None or study.limits.tpot is not None:
        good = [(r.good(study.limits), r.requests_per_second) for r in results]
        rows += [
            ("within the limits", [f"{share:.1%}" for share, _ in good]),
            ("goodput, requests a second", [f"{share * rate:,.3g}" for share, rate in good]),
        ]
    rows += [
        ("waiting: mean, most", [f"{r.series.mean('waiting'):,.1f}, {r.most_waiting:,}" for r in results]),
        (
            "slots: mean, most",
            [
                f"{run.result.series.mean('slots'):,.1f}, {run.result.most_slots:,} of {run.capacity.slots:,}"
                for run in study.runs
            ],
        ),
        (
            "cache held: mean, most",
            [f"{r.series.mean('memory'):.1%}, {r.series.memory.max():.1%}" for r in results],
        ),
        ("busy", [f"{r.busy_share:.1%}" for r in results]),
        ("preemptions", [f"{r.preemptions:,}" for r in results]),
        ("decode layouts", [", ".join(str(roles) for roles in run.decode) for run in study.runs]),
        ("layout switches", [f"{r.moves:,}" for r in results]),
    ]
    for name, cells in rows:
        table.add_row(name, *map(Text, cells))
    return table


def _time(found: Mapping[str, float] | None, part: str) -> str:
    return "" if found is None else format_seconds(found[part])


def simulation_note(study: Study) -> Text:
    """What the times are, and what was simulated."""
    setting, load = study.server.setting, study.load
    if study.profile is None:
        times = "Steps take their bound, which no run can beat"
    else:
        times = f"Steps take what the profile {study.profile} expects"
    return Text(
        f"{times}. {load['requests'] - study.skip:,} requests counted of {load['requests']:,}; on average "
        f"{load['mean_prompt']:,.0f} prompt and {load['mean_output']:,.0f} output tokens. "
        f"{setting.model.name} on {setting.cluster.name}, mesh {setting.mesh}, "
        f"prefill {study.server.prefill}."
    )


def plot_simulation(study: Study, path: Path) -> None:
    """Shares of requests by TTFT and by TPOT, and over time who waits and how many slots are filled. Errors
    as those of `save`."""
    setting = study.server.setting
    title = f"{setting.model.name} on {setting.cluster.name}: a simulated load"
    save(draw(panels(study), title=title, caption=(simulation_note(study).plain,)), path)


def panels(study: Study) -> list[Panel]:
    results = [run.result for run in study.runs]
    limits = {"ttft": study.limits.ttft, "tpot": study.limits.tpot}
    found = [
        Panel(
            title=f"{_NAMES[name]} of requests",
            x_label=f"{_NAMES[name]} (ms)",
            y_label="share of requests that take no longer",
            series=tuple(_shares(i, r, getattr(r, name), study) for i, r in enumerate(results)),
            lines=() if limit is None else (ReferenceLine("x", limit * 1e3, "limit"),),
            x_scale="log",
            percent=True,
        )
        for name, limit in limits.items()
        if all(len(getattr(r, name)) for r in results)
    ]
    for name, label in (("waiting", "requests that wait"), ("slots", "slots in use")):
        curves = []
        for i, result in enumerate(results):
            curves.append(_over_time(i, result, name, study))
        found.append(Panel(f"{label} over time", "seconds", label, tuple(curves)))
    return found


def _over_time(index: int, result: Result, name: str, study: Study) -> Series:
    """Means over up to `_POINTS` parts of the time."""
    series = result.series
    step = -(-len(series.start) // _POINTS)
    parts = np.arange(0, len(series.start), step)
    seconds = np.add.reduceat(series.seconds, parts)
    y = np.add.reduceat(getattr(series, name) * series.seconds, parts) / seconds
    x = series.start[parts] + seconds / 2
    return Series(result.policy, tuple(x.tolist()), tuple(y.tolist()), study.basis, colour=index)


def _shares(index: int, result: Result, seconds: Floats, study: Study) -> Series:
    """The distribution of times above 0, each share with the least time that it keeps to."""
    shares = np.linspace(0, 1, min(_POINTS, len(seconds) + 1))[1:]
    times = np.quantile(seconds, shares, method="inverted_cdf")
    return Series(
        result.policy, tuple((times * 1e3).tolist()), tuple(shares.tolist()), study.basis, colour=index
    )
