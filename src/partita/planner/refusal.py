"""Why there is no plan: no layout of both phases fits, or those that do are too slow.

Knows nothing about the words; `misfit.py` has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from partita.cost.prediction import Prediction, Setting
from partita.errors import InputError
from partita.planner.exact import Exact
from partita.planner.misfit import nearest, too_large, too_slow
from partita.planner.phases import Tables, price
from partita.planner.search import by_storage


def refusal(tables: Sequence[Tables]) -> InputError:
    """Why there is no plan: nothing fits, or what fits is too slow."""
    asked = tables[0].case.request
    limited = (asked.max_ttft, asked.max_tpot, asked.rate) != (None, None, None)
    fitting = [table for table in tables if _fits(table)]
    if not fitting or not limited:  # rows may seem to fit that do not as pairs
        closest = nearest([worst for table in tables if (worst := _least_excess(table)) is not None])
        case = tables[-1].case

        def fits(setting: Setting) -> bool:
            workload = setting.workload
            mesh = setting.mesh if case.request.mesh is not None else None
            changed = replace(
                case,
                request=replace(case.request, model=setting.model, mesh=mesh),
                cluster=setting.cluster,
                formats=setting.formats,
                workload=workload,
                batches=(workload.batch,),
                prefill_batches=(workload.prefill_batch,),
            )
            return _fits(price(changed))

        return too_large(closest, fits)
    return too_slow(fitting)


def _fits(tables: Tables) -> bool:
    """Whether some layout of both phases on one storage fits."""
    prefill = {tuple(key) for key in tables.prefill.storage[tables.prefill_fits.any(axis=1)].tolist()}
    decode = {tuple(key) for key in tables.decode.storage[tables.decode_fits.any(axis=1)].tolist()}
    return bool(prefill & decode)


def _least_excess(tables: Tables) -> Prediction | None:
    """The phase that lacks memory in the layout that lacks least; None where no row is a layout at all."""
    best: tuple[float, Prediction] | None = None
    tight = [np.where(np.isfinite(t.seconds), t.held_bytes, np.inf) for t in (tables.decode, tables.prefill)]
    exact, held = Exact(tables), [table.min(axis=1) for table in tight]
    groups = sorted(by_storage(tables), key=lambda rows: max(float(held[i][rows[i]].min()) for i in (0, 1)))
    for rows in groups[:4]:
        chosen = [int(rows[i][held[i][rows[i]].argmin()]) for i in (0, 1)]
        if not all(np.isfinite(held[i][chosen[i]]) for i in (0, 1)):
            continue
        b, pb = (int(tight[i][chosen[i]].argmin()) for i in (0, 1))
        for pair in exact.pairs(chosen[0], b, chosen[1], pb):
            worst = max((pair.decode, pair.prefill), key=lambda phase: phase.memory_bytes["total"])
            if best is None or worst.memory_bytes["total"] < best[0]:
                best = (worst.memory_bytes["total"], worst)
    return None if best is None else best[1]
