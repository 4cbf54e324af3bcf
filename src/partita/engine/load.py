"""`Engine.load`: an engine from the name of a model and a plan or a mesh with layouts."""

from __future__ import annotations

from partita.checkpoints.open import open_checkpoint
from partita.engine.devices import devices_for
from partita.engine.engine import Engine
from partita.engine.number_formats import number_formats
from partita.engine.requests import check_stages
from partita.errors import InputError
from partita.planner.plan import Plan
from partita.planner.saved import SavedPlan, load_plan
from partita.program.switches import Switches
from partita.sharding.mesh import Mesh, parse_mesh
from partita.sharding.roles import parse_layout


def load(
    model: str,
    *,
    plan: Plan | SavedPlan | str | None = None,
    mesh: str | Mesh | None = None,
    prefill: str | None = None,
    decode: str = "ws2d/batch",
    dtype: str = "auto",
    weights: str | None = None,
    kv: str | None = None,
    chunk: int | None = None,
    switches: Switches | None = None,
    devices: int | None = None,
) -> Engine:
    """An engine for MODEL: on a plan's mesh and layouts, or on `mesh` with `prefill` and `decode` layouts.

    A layout is FFN/ATTENTION, such as "wg-xyz/heads"; prefill's is decode's unless given. `dtype`, `weights`
    and `kv` are as `number_formats` has them, `chunk` and `switches` as `Engine`. `devices` makes so many CPU
    devices where there is no accelerator. Raises InputError for wrong input.
    """
    if plan is not None and mesh is not None:
        raise InputError("mesh", mesh, "give mesh or plan, which has a mesh of its own")
    number_formats(dtype, weights, kv, "")  # what is wrong is said before a model is opened
    planned = None
    if isinstance(plan, str):
        plan = load_plan(plan)
    if isinstance(plan, SavedPlan):
        check_stages(plan.setting.stages)
        shape, roles, planned = plan.setting.mesh, (plan.prefill, plan.decode), plan.setting.formats
    elif plan is not None:
        check_stages(plan.decode.setting.stages)
        shape, planned = plan.decode.setting.mesh, plan.decode.setting.formats
        roles = (plan.prefill.layout.roles, plan.decode.layout.roles)
    else:
        shape = parse_mesh(mesh) if isinstance(mesh, str) else mesh or Mesh("x", (devices or 1,))
        roles = (parse_layout(prefill or decode, shape.axes), parse_layout(decode, shape.axes))
    checkpoint, found = open_checkpoint(model), devices_for(shape.chips, devices)
    return Engine(
        checkpoint,
        shape,
        *roles,
        formats=number_formats(dtype, weights, kv, found[0].platform, planned),
        devices=found,
        chunk=chunk,
        switches=switches,
    )
