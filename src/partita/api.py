"""`partita.plan`: the planner as one Python call. Never imports JAX."""

from __future__ import annotations

from pathlib import Path

from partita.cost.prediction import Setting
from partita.planner.plan import Objective, Plan, make_plan, make_plan_any_batch, parse_objective
from partita.sharding.mesh import Mesh, parse_mesh
from partita.specs.cluster import Cluster, parse_cluster
from partita.specs.formats import Formats
from partita.specs.model import Model
from partita.specs.resolve import resolve_model
from partita.specs.units import parse_duration
from partita.specs.workload import Workload


def plan(
    model: str | Model,
    on: str | Cluster,
    *,
    prompt: int = 2048,
    output: int = 64,
    batch: int | str = "auto",
    prefill_batch: int | None = None,
    context: int | None = None,
    objective: Objective = "latency",
    mesh: str | Mesh | None = None,
    formats: Formats | None = None,
    max_ttft: str | None = None,
    max_tpot: str | None = None,
    top: int = 5,
) -> Plan:
    """The best layouts of both phases, as `partita plan` chooses them; arguments as its options.

    Raises InputError for wrong input, and where nothing fits or keeps the limits.
    """
    described = resolve_model(model, {".gguf": _model_from_gguf}) if isinstance(model, str) else model
    cluster = parse_cluster(on) if isinstance(on, str) else on
    shape = parse_mesh(mesh) if isinstance(mesh, str) else mesh or Mesh.of(cluster.shape)
    auto = batch == "auto"
    workload = Workload(
        prompt=prompt,
        output=output,
        batch=1 if auto else batch,  # type: ignore[arg-type]  # Workload refuses what is no number
        prefill_batch=prefill_batch,
        context=context,
    )
    search = make_plan_any_batch if auto else make_plan
    return search(
        Setting(described, cluster, shape, formats or Formats(), workload),
        parse_objective(objective),
        max_ttft=None if max_ttft is None else parse_duration(max_ttft, "max_ttft"),
        max_tpot=None if max_tpot is None else parse_duration(max_tpot, "max_tpot"),
        top=top,
    )


def _model_from_gguf(path: Path) -> Model:
    # imported here: the gguf library would slow every plan of another model
    from partita.checkpoints.gguf import model_from_gguf

    return model_from_gguf(path)
