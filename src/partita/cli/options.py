"""Options that several commands share, and what they make of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, get_args

import typer

from partita.api import read_model
from partita.cost.setting import Setting, stage_of
from partita.errors import InputError
from partita.sharding.mesh import Mesh, parse_mesh
from partita.sharding.roles import Roles, parse_roles
from partita.specs.cluster import parse_cluster
from partita.specs.formats import Float, Format, Formats
from partita.specs.workload import Workload

MODEL_HELP = "Catalogue name, a folder (config.json, or by `quantize`), a .gguf file, a Hugging Face repo id."
MESH_HELP = "Logical mesh, e.g. x=4,y=4,z=4."
FFN_HELP = "ws1d, ws2d, wg-x, wg-xy, wg-xyz, or roles such as x=e,y=f,z=f-gathered."
ATTENTION_HELP = "heads, batch, context, or roles such as x=heads,y=batch,z=context."
OVERLAP_HELP = (
    "Collectives looped with their einsums: none, one-way, two-way, or pairs such as ffn/out/scatter=two-way."
)

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
ClusterName = Annotated[str, typer.Option("--on", metavar="CLUSTER", help="tpu-v4:4x4x4, or a TOML file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
MeshText = Annotated[str | None, typer.Option("--mesh", help=MESH_HELP)]
Weights = Annotated[str, typer.Option("--weights", help="Format of the weights: bf16, int8 or f32.")]
Kv = Annotated[str, typer.Option("--kv", help="Format of the KV cache: bf16, int8 or f32.")]
Activations = Annotated[str, typer.Option("--activations", help="Format of activations: bf16 or f32.")]
Reduce = Annotated[str, typer.Option("--reduce", help="Format partial sums travel in: f32 or bf16.")]


def read_formats(weights: str, kv: str, activations: str, reduce: str) -> Formats:
    """Raises InputError naming the option."""
    for field, value, kinds in (
        ("weights", weights, Format),
        ("kv", kv, Format),
        ("activations", activations, Float),
        ("reduce", reduce, Float),
    ):
        if value not in get_args(kinds):
            raise InputError(field, value, f"accepted are {', '.join(get_args(kinds))}")
    return Formats.model_validate(
        {"weights": weights, "kv": kv, "activations": activations, "reduce": reduce}
    )


def read_setting(
    model: str, cluster: str, mesh: str | None, workload: Workload, formats: Formats, stages: int = 1
) -> Setting:
    """What is priced; the mesh is the shape of the cluster, or of one stage of it, unless given."""
    described, on = read_model(model), parse_cluster(cluster)
    shape = parse_mesh(mesh) if mesh else Mesh.of(stage_of(on, stages).shape)
    setting = Setting(described, on, shape, formats, workload, stages)
    _ = setting.peaks, setting.parts  # a mesh, format or number of stages that does not fit is refused here
    return setting


@dataclass(frozen=True)
class Running:
    """A mesh and the roles of both phases, for commands that run a model."""

    mesh: Mesh
    prefill: Roles
    decode: Roles
    planned: Setting | None = None  # what a plan was made for


def read_running(
    mesh: str | None,
    devices: int | None,
    ffn: str,
    attention: str,
    prefill_ffn: str | None,
    prefill_attention: str | None,
) -> Running:
    """The mesh, by default all `devices` on one axis; prefill's layout is decode's unless given."""
    if mesh is None:
        if devices is not None and devices < 1:
            raise InputError("devices", devices, "1 or more devices are accepted")
        shape = Mesh("x", (devices or 1,))
    else:
        shape = parse_mesh(mesh)
    decode = parse_roles(ffn, attention, shape.axes)
    try:
        prefill = parse_roles(prefill_ffn or ffn, prefill_attention or attention, shape.axes)
    except InputError as error:
        raise InputError(f"prefill-{error.field}", error.value, error.message) from None
    return Running(shape, prefill, decode)
