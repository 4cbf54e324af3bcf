"""Layouts of one phase on a mesh, spread evenly from the best to far worse: what to measure a prediction by.

Of layouts that are predicted alike a clock could only tell which the noise favours; these differ. Knows
nothing about clocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from partita.cost.prediction import Prediction
from partita.cost.setting import Phase, Setting
from partita.planner.by import By, by_of, step_seconds
from partita.planner.exact import Exact
from partita.planner.phases import price, prime_factors
from partita.planner.question import Question
from partita.sharding.mesh import Mesh

_WORST = 6.0
"""Times as long as the best that a layout may take: worse ones nobody would look at."""


def survey(setting: Setting, phase: Phase, count: int, by: By | None = None) -> tuple[Prediction, ...]:
    """At most `count` layouts of a phase on the setting's mesh, each in its own storage, best first.

    The first is the best there is; of the others the logarithms of their times lie evenly up to `_WORST`
    times it, or to the worst there is. Times are by `by`, as `by_of` has it. Layouts that do not fit are
    left out.
    """
    by = by_of((setting.cluster,), by)
    found: list[Prediction] = []
    ranked = list(_ranked(setting, phase, by))
    if not ranked:
        return ()
    seconds = np.array([step_seconds(each, by) for each in ranked])
    wanted = np.geomspace(seconds[0], min(seconds[-1], _WORST * seconds[0]), count)
    for time in wanted:
        nearest = ranked[int(np.abs(np.log(seconds / time)).argmin())]
        if nearest not in found:
            found.append(nearest)
    return tuple(found)


def _ranked(setting: Setting, phase: Phase, by: By) -> Iterator[Prediction]:
    """One layout of every time there is, to two digits and as the tables have it, ascending."""
    workload = setting.workload
    question = Question(
        setting.model,
        setting.cluster,
        setting.formats,
        workload,
        (workload.batch,),
        (workload.prefill_batch,),
        "latency",
        mesh=setting.mesh,
        by=by,
    )
    tables = price(question)
    table, fits = (
        (tables.decode, tables.decode_fits) if phase == "decode" else (tables.prefill, tables.prefill_fits)
    )
    exact, seen = Exact(tables), set()
    exactly = []
    for row in np.argsort(table.seconds[:, 0]):
        seconds = float(table.seconds[row, 0])
        if not fits[row, 0] or not math.isfinite(seconds):
            continue
        rounded = f"{seconds:.1e}"
        if rounded in seen:
            continue
        prediction = exact.alone(phase, int(row), 0)
        if prediction is not None and prediction.fits:
            seen.add(rounded)
            exactly.append(prediction)
    yield from sorted(exactly, key=lambda each: step_seconds(each, by))


def mesh_of(shape: Sequence[int]) -> Mesh:
    """Physical axes as a mesh; of a single one its prime factors, so that layouts have axes to differ in."""
    sizes = [size for size in shape if size > 1]
    if len(sizes) == 1:
        sizes = prime_factors(sizes[0])
    return Mesh.of(tuple(sizes) or (1,))
