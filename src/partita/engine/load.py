"""Where and how a model is to run, as a user says it, before a checkpoint is opened or devices are made.

Number formats are as a plan or a user says, and else what the devices are fast in. CPU devices compute in
float32: XLA's CPU backend runs a decode step of SmolLM2 in bfloat16 in up to twice the time
(`bench/engine.py` measures it). Other devices compute in bfloat16.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partita.engine.drafting import Draft, check_draft
from partita.engine.requests import check_stages
from partita.engine.shapes import Capacity
from partita.engine.smaller import PYTHON, Words
from partita.errors import InputError
from partita.program.options import RunOptions
from partita.sharding.mesh import Mesh, parse_mesh
from partita.sharding.roles import Roles, parse_layout
from partita.specs.arguments import of_type, whole_number
from partita.specs.formats import Float, Formats

if TYPE_CHECKING:  # running without a plan needs no planner
    from partita.planner.plan import Plan
    from partita.planner.saved import SavedPlan


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
    from partita.planner.plan import Plan
    from partita.planner.saved import SavedPlan, load_plan

    if isinstance(plan, str):
        plan = load_plan(plan)
    of_type("plan", plan, (Plan, SavedPlan), "a plan, or the file of one,")
    if not isinstance(plan, SavedPlan):
        plan = SavedPlan(plan.decode.setting, plan.prefill.layout.roles, plan.decode.layout.roles)
    check_stages(plan.setting.stages)
    return Placement(plan.setting.mesh, plan.prefill, plan.decode, plan)


def placement_on(mesh: str | Mesh, prefill: str, decode: str) -> Placement:
    """A mesh and two layouts, such as "wg-xyz/heads"; raises InputError for wrong ones."""
    shape = parse_mesh(mesh) if isinstance(mesh, str) else mesh
    of_type("mesh", shape, Mesh, "a text such as x=4,y=2, or a Mesh,")
    for field, layout in (("decode", decode), ("prefill", prefill)):
        of_type(field, layout, str, "FFN/ATTENTION, such as wg-xyz/heads,")
    return Placement(shape, parse_layout(prefill, shape.axes), parse_layout(decode, shape.axes))


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """How a model is to run, as a user says it.

    dtype, weights, kv: as in `number_formats`. chunk: tokens of a prompt that are read in one step, at most;
    None for as many as are planned. devices: of the CPU, made where there is no accelerator. capacity: as in
    `EngineOptions`. draft: whether a step verifies drafted tokens. force: it runs whatever memory there is.
    words: how the user says what could be less, where there is too little.
    Raises InputError for number formats and drafts that there are not, and for what is no whole number.
    """

    dtype: str = "auto"
    weights: str | None = None
    kv: str | None = None
    chunk: int | None = None
    run_options: RunOptions | None = None
    devices: int | None = None
    capacity: Capacity | None = None
    draft: Draft = "auto"
    force: bool = False
    words: Words = dataclasses.field(default_factory=lambda: PYTHON)

    def __post_init__(self) -> None:
        check_draft(self.draft)
        number_formats(self.dtype, self.weights, self.kv, "")
        for field in ("chunk", "devices"):
            if (value := getattr(self, field)) is not None:
                object.__setattr__(self, field, whole_number(field, value))

    def formats(self, platform: str, placement: Placement, *, quantised: bool) -> Formats:
        """The formats on such devices, of a checkpoint that may be held in int8."""
        planned = placement.plan and placement.plan.setting.formats
        weights = self.weights or ("int8" if quantised else None)
        return number_formats(self.dtype, weights, self.kv, platform, planned)

    def chunk_of(self, placement: Placement) -> int | None:
        """The chunk that is requested, else the planned one."""
        if self.chunk is None and placement.plan is not None:
            return placement.plan.setting.workload.chunk
        return self.chunk


_DTYPES = ("auto", "f32", "bf16")


def number_formats(
    dtype: str,
    weights: str | None,
    kv: str | None,
    platform: str,
    planned: Formats | None = None,
) -> Formats:
    """The formats of a run on devices of a platform, such as "cpu".

    dtype: of activations, and of weights and cache where these are not int8; "auto" for what is planned, or
    else fast. On CPU devices that is float32 whatever is planned, but for what the plan has in int8.
    weights, kv: "int8", or None: int8 where the plan has it. Raises InputError for others.
    """
    if dtype not in _DTYPES:
        raise InputError("dtype", dtype, f"accepted are {', '.join(_DTYPES)}")
    for field, value in (("weights", weights), ("kv", kv)):
        if value not in (None, "int8"):
            raise InputError(field, value, "int8 is accepted; without it they are in dtype")
    if dtype == "auto" and planned is not None and platform != "cpu":
        return planned.model_copy(update={"weights": weights or planned.weights, "kv": kv or planned.kv})
    if dtype == "auto":
        dtype = "f32" if platform == "cpu" else "bf16"
    if planned is not None:
        weights = weights or ("int8" if planned.weights == "int8" else None)
        kv = kv or ("int8" if planned.kv == "int8" else None)
    reduce: Float = "f32" if planned is None or dtype == "f32" else planned.reduce
    return Formats.model_validate(
        {"weights": weights or dtype, "activations": dtype, "kv": kv or dtype, "reduce": reduce}
    )
