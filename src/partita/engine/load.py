"""Where and how a model is to run, as a user says it, before a checkpoint is opened or devices are made."""

from __future__ import annotations

from dataclasses import dataclass

from partita.engine.number_formats import number_formats
from partita.engine.requests import check_stages
from partita.planner.plan import Plan
from partita.planner.saved import SavedPlan, load_plan
from partita.program.options import RunOptions
from partita.sharding.mesh import Mesh, parse_mesh
from partita.sharding.roles import Roles, parse_layout
from partita.specs.formats import Formats


@dataclass(frozen=True)
class Placement:
    """A mesh, the roles of both phases on it, and the plan that chose them, if one did."""

    mesh: Mesh
    prefill: Roles
    decode: Roles
    plan: SavedPlan | None = None


def placement_of(plan: Plan | SavedPlan | str) -> Placement:
    """The mesh and layouts of a plan, or of the file that has it.

    Raises InputError as `load_plan` does, and for a plan with pipeline stages.
    """
    if isinstance(plan, str):
        plan = load_plan(plan)
    if not isinstance(plan, SavedPlan):
        plan = SavedPlan(plan.decode.setting, plan.prefill.layout.roles, plan.decode.layout.roles)
    check_stages(plan.setting.stages)
    return Placement(plan.setting.mesh, plan.prefill, plan.decode, plan)


def placement_on(mesh: str | Mesh, prefill: str, decode: str) -> Placement:
    """A mesh and two layouts, such as "wg-xyz/heads"; raises InputError for wrong ones."""
    shape = parse_mesh(mesh) if isinstance(mesh, str) else mesh
    return Placement(shape, parse_layout(prefill, shape.axes), parse_layout(decode, shape.axes))


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """How a model is to run, as a user says it.

    dtype, weights, kv: as in `number_formats`. chunk: tokens of a prompt that are read in one step, at most;
    None for as many as are planned. devices: of the CPU, made where there is no accelerator. Raises
    InputError for number formats that there are not.
    """

    dtype: str = "auto"
    weights: str | None = None
    kv: str | None = None
    chunk: int | None = None
    run_options: RunOptions | None = None
    devices: int | None = None

    def __post_init__(self) -> None:
        number_formats(self.dtype, self.weights, self.kv, "")

    def formats(self, platform: str, placement: Placement, *, quantised: bool) -> Formats:
        """The formats on such devices, of a checkpoint that may be held in int8."""
        planned = placement.plan and placement.plan.setting.formats
        weights = self.weights or ("int8" if quantised else None)
        return number_formats(self.dtype, weights, self.kv, platform, planned)

    def chunk_of(self, placement: Placement) -> int | None:
        """As asked, else as planned."""
        if self.chunk is None and placement.plan is not None:
            return placement.plan.setting.workload.chunk
        return self.chunk
