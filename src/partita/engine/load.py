"""`Engine.load`: an engine from the name of a model and a plan or a mesh with layouts."""

from __future__ import annotations

from partita.checkpoints.open import open_checkpoint
from partita.engine.devices import devices_for
from partita.engine.engine import Engine
from partita.engine.requests import check_stages
from partita.errors import InputError
from partita.planner.plan import Plan
from partita.planner.saved import SavedPlan, load_plan
from partita.sharding.mesh import Mesh, parse_mesh
from partita.sharding.roles import parse_layout
from partita.specs.formats import Formats


def load(
    model: str,
    *,
    plan: Plan | SavedPlan | str | None = None,
    mesh: str | Mesh | None = None,
    prefill: str | None = None,
    decode: str = "ws2d/batch",
    dtype: str = "f32",
    devices: int | None = None,
) -> Engine:
    """An engine for MODEL: on a plan's mesh and layouts, or on `mesh` with `prefill` and `decode` layouts.

    A layout is FFN/ATTENTION, such as "wg-xyz/heads"; prefill's is decode's unless given. `devices` makes so
    many CPU devices where there is no accelerator. Raises InputError for wrong input.
    """
    if plan is not None and mesh is not None:
        raise InputError("mesh", mesh, "give mesh or plan, which has a mesh of its own")
    if dtype not in ("f32", "bf16"):
        raise InputError("dtype", dtype, "accepted are f32, bf16")
    if isinstance(plan, str):
        plan = load_plan(plan)
    if isinstance(plan, SavedPlan):
        check_stages(plan.setting.stages)
        shape, roles = plan.setting.mesh, (plan.prefill, plan.decode)
    elif plan is not None:
        check_stages(plan.decode.setting.stages)
        shape = plan.decode.setting.mesh
        roles = (plan.prefill.layout.roles, plan.decode.layout.roles)
    else:
        shape = parse_mesh(mesh) if isinstance(mesh, str) else mesh or Mesh("x", (devices or 1,))
        roles = (parse_layout(prefill or decode, shape.axes), parse_layout(decode, shape.axes))
    return Engine(
        open_checkpoint(model),
        shape,
        *roles,
        formats=Formats.all_in(dtype),
        devices=devices_for(shape.chips, devices),
    )
