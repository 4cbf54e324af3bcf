"""`Engine.load`: an engine from the name of a model and a plan or a mesh with layouts."""

from __future__ import annotations

import os
from collections.abc import Callable

from partita.checkpoints.open import open_checkpoint
from partita.checkpoints.protocol import Checkpoint
from partita.engine.devices import devices_for
from partita.engine.engine import Engine
from partita.engine.number_formats import number_formats
from partita.engine.requests import check_stages
from partita.errors import InputError
from partita.planner.plan import Plan
from partita.planner.saved import SavedPlan, load_plan
from partita.program.options import RunOptions
from partita.sharding.mesh import Mesh, parse_mesh
from partita.sharding.roles import Roles, parse_layout
from partita.specs.formats import Formats


def load(
    model: str | os.PathLike[str],
    *,
    plan: Plan | SavedPlan | str | None = None,
    mesh: str | Mesh | None = None,
    prefill: str | None = None,
    decode: str = "ws2d/batch",
    dtype: str = "auto",
    weights: str | None = None,
    kv: str | None = None,
    chunk: int | None = None,
    run_options: RunOptions | None = None,
    devices: int | None = None,
) -> Engine:
    """An engine for MODEL: on a plan's mesh and layouts, or on `mesh` with `prefill` and `decode` layouts.

    A layout is FFN/ATTENTION, such as "wg-xyz/heads"; prefill's is decode's unless given. `dtype`, `weights`
    and `kv` are as `number_formats` has them, `chunk` and `run_options` as `Engine`. `devices` makes so many
    CPU devices where there is no accelerator. Raises InputError for wrong input.
    """
    if plan is not None and mesh is not None:
        raise InputError("mesh", mesh, "give mesh or plan, which has a mesh of its own")
    number_formats(dtype, weights, kv, "")  # what is wrong is said before a model is opened
    planned = None
    if isinstance(plan, str):
        plan = load_plan(plan)
    if isinstance(plan, SavedPlan):
        planned, shape = plan.setting, plan.setting.mesh
        roles = (plan.prefill, plan.decode)
    elif plan is not None:
        planned, shape = plan.decode.setting, plan.decode.setting.mesh
        roles = (plan.prefill.layout.roles, plan.decode.layout.roles)
    else:
        shape = parse_mesh(mesh) if isinstance(mesh, str) else mesh or Mesh("x", (devices or 1,))
        roles = (parse_layout(prefill or decode, shape.axes), parse_layout(decode, shape.axes))
    if planned is not None:
        check_stages(planned.stages)
    return placed(
        open_checkpoint(os.fspath(model)),
        shape,
        *roles,
        planned=planned.formats if planned else None,
        dtype=dtype,
        weights=weights,
        kv=kv,
        chunk=planned.workload.chunk if chunk is None and planned else chunk,
        run_options=run_options,
        devices=devices,
    )


def placed(
    checkpoint: Checkpoint,
    mesh: Mesh,
    prefill: Roles,
    decode: Roles,
    *,
    planned: Formats | None = None,
    dtype: str = "auto",
    weights: str | None = None,
    kv: str | None = None,
    chunk: int | None = None,
    run_options: RunOptions | None = None,
    devices: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Engine:
    """An engine for a checkpoint, in `number_formats`; one that is held in int8 runs in int8.

    Raises InputError as `load` does.
    """
    found = devices_for(mesh.chips, devices)
    weights = weights or ("int8" if checkpoint.quantised else None)
    return Engine(
        checkpoint,
        mesh,
        prefill,
        decode,
        formats=number_formats(dtype, weights, kv, found[0].platform, planned),
        devices=found,
        chunk=chunk,
        run_options=run_options,
        progress=progress,
    )
