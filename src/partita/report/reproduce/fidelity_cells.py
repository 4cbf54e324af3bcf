"""Every published time that an estimate can be set beside: its bound, estimate and interval.

Knows where published times are kept and how each is priced; nothing about how they are shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from partita.cost.interval import around, interval
from partita.cost.prediction import Prediction
from partita.measure import served_points
from partita.measure.refit import measured_runs
from partita.report.reproduce.pricing import on_torus, run
from partita.report.reproduce.published import published
from partita.specs.catalogue import profile as catalogue_profile


@dataclass(frozen=True)
class Cell:
    """One published time beside what is predicted for it; all in seconds."""

    table: str
    name: str
    profile: str
    fitted: bool
    """Whether the profile's constants were fitted to it."""
    bound: float
    estimate: float
    low: float
    high: float
    published: float
    gave_interval: bool = False
    """Whether it was kept apart from the fit and the interval is made of it and its like."""

    @property
    def error(self) -> float:
        """Of the estimate, as a share of what was published."""
        return self.estimate / self.published - 1

    @property
    def inside(self) -> bool | None:
        """Whether it is in the interval; None where that says nothing, since the interval is made of it."""
        return None if self.gave_interval else self.low <= self.published <= self.high


@cache
def cells() -> tuple[Cell, ...]:
    """All of them, table by table."""
    return (*_runs("tpu-v4"), *_figure1(), *_runs("a100"), *_served(), *_runs("tpu-v5e"))


def _runs(name: str) -> Iterator[Cell]:
    for which, fitted in (("runs", True), ("unseen", False)):
        for each in measured_runs(name, which):
            model, phases = each.predictions[0].setting.model.name, [p.phase for p in each.predictions]
            what = f"{model} {' and '.join(phases)}, batch {each.batch}"
            found = _cell(f"{name}: {each.group}", what, fitted, each.predictions, each.seconds)
            yield replace(found, gave_interval=not fitted)


def _figure1() -> Iterator[Cell]:
    """Seconds a token in the text beside Figure 1: that in bf16 is in no table that was fitted to."""
    for row in published("figure1").rows:
        setting = on_torus("palm-540b", 64, batch=row["batch"], weights=row["weights"])
        found = run(setting, "decode", "ws2d/batch").prediction
        seconds = row["milliseconds_per_token"] / 1e3 * found.steps
        name = f"palm-540b ws2d/batch decode in {row['weights']}, batch {row['batch']}"
        yield _cell("tpu-v4: Figure 1, text", name, False, (found,), seconds)


def _cell(table: str, name: str, fitted: bool, parts: tuple[Prediction, ...], seconds: float) -> Cell:
    found = [each.estimate for each in parts if each.estimate is not None]
    return Cell(
        table=table,
        name=name,
        profile=found[0].profile.name,
        fitted=fitted,
        bound=sum(each.total_seconds for each in parts),
        estimate=sum(each.total_seconds for each in found),
        low=sum(each.total_interval[0] for each in found),
        high=sum(each.total_interval[1] for each in found),
        published=seconds,
    )


def _served() -> Iterator[Cell]:
    profile = catalogue_profile(served_points.NAME)
    for block in served_points.published():
        bounds = block.served.bound_seconds()
        timed = zip(block.rows, bounds, block.estimated(profile), strict=True)
        for i, (row, bound, estimate) in enumerate(timed):
            low, high = around(float(estimate), float(bound), interval(profile, block.asked(i)))
            yield Cell(
                table=f"h100: served {row.model}, {row.engine}",
                name=f"{row.weights} on {row.chips} {row.chip}, {row.concurrency} clients, "
                f"{row.prompt} in, {row.output} out",
                profile=profile.name,
                fitted=True,
                bound=float(bound),
                estimate=float(estimate),
                low=low,
                high=high,
                published=row.seconds,
            )
