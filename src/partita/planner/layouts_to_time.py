"""Layouts of one phase on a mesh that are worth timing: the best, its rivals, and others to far worse ones.

The rivals say whether the best is the right choice, the others whether predicted times hold over all of the
range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from partita.cost.prediction import Prediction
from partita.cost.setting import Setting
from partita.planner.exact import Exact
from partita.planner.pair import Basis, basis_of, step_seconds
from partita.planner.request import PlanRequest
from partita.planner.space import prime_factors
from partita.planner.tables import NEAR, price
from partita.sharding.mesh import Mesh
from partita.specs.profile import Phase

_WORST = 6.0
"""How many times as long as the best a layout may take; nobody would look at worse ones."""

_APART = 1.01
"""How many times as long as the next better one a layout takes at least."""


def layouts_to_time(
    setting: Setting, phase: Phase, count: int, basis: Basis | None = None
) -> tuple[Prediction, ...]:
    """Up to `count` layouts of a phase on the setting's mesh, each in its own storage, best first.

    The first is the best there is, to a thousandth, and a quarter of the others are its closest rivals. The
    rest are added one by one, each the farthest from those so far by the logarithm of its time, none beyond
    `_WORST` times the best. Times are by the basis that `basis_of` gives. Left out are layouts that do not
    fit and those that the planner does not price because they cannot be the best.
    """
    basis = basis_of((setting.cluster,), basis)
    ranked = _ranked(setting, phase, basis)
    if not ranked:
        return ()
    times = np.log([step_seconds(each, basis) for each in ranked])
    times = times[times <= times[0] + math.log(_WORST)]
    chosen = list(range(min(1 + count // 4, count, len(times))))
    while len(chosen) < min(count, len(times)):
        chosen.append(int(np.abs(times[:, None] - times[chosen]).min(axis=1).argmax()))
    return tuple(ranked[i] for i in sorted(chosen))


def _ranked(setting: Setting, phase: Phase, basis: Basis) -> list[Prediction]:
    """The best layout, and others up to `_WORST`, one of all whose times in the tables are within `_APART`;
    ascending, and as far apart when priced as they run."""
    (case,) = PlanRequest.of(setting, basis=basis).cases()
    tables = price(case)
    table, fits = (
        (tables.decode, tables.decode_fits) if phase == "decode" else (tables.prefill, tables.prefill_fits)
    )
    least = table.last_seconds[:, 0]  # on the whole cache: what a row takes at least
    exact, seen, best = Exact(tables), set(), math.inf
    found: list[Prediction] = []
    for row in np.argsort(least):
        if not fits[row, 0]:
            continue
        if least[row] > _WORST * best:
            break
        about = round(math.log(least[row], _APART))
        if about in seen and least[row] > best * (1 + NEAR):
            continue
        prediction = exact.alone(phase, int(row), 0)
        if prediction is not None and prediction.fits:
            seen.add(about)
            found.append(prediction)
            best = min(best, step_seconds(prediction, basis))
    apart: list[Prediction] = []
    for each in sorted(found, key=lambda each: step_seconds(each, basis)):
        if not apart or step_seconds(each, basis) > _APART * step_seconds(apart[-1], basis):
            apart.append(each)
    return apart


def mesh_of(shape: Sequence[int]) -> Mesh:
    """Physical axes as a mesh; of a single one its prime factors, so that layouts have axes to differ in."""
    sizes = [size for size in shape if size > 1]
    if len(sizes) == 1:
        sizes = prime_factors(sizes[0])
    return Mesh.of(tuple(sizes) or (1,))
