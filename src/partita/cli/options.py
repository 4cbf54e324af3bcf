"""Options that several commands share, and what they make of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args

import typer

from partita.engine.load import Placement, placement_of
from partita.engine.smaller import Words
from partita.errors import InputError
from partita.sharding.mesh import Mesh, parse_mesh
from partita.sharding.roles import parse_roles
from partita.specs.cluster import parse_cluster
from partita.specs.formats import Float, Format, Formats
from partita.specs.profile import Phase as PhaseName
from partita.specs.workload import Workload

if TYPE_CHECKING:
    from partita.cost.setting import Setting

MODEL_HELP = (
    "Catalogue name, folder (config.json, or written by `quantize`), .gguf file or Hugging Face repo id."
)
MESH_HELP = "Logical mesh, e.g. x=4,y=4,z=4."
FFN_HELP = "ws1d, ws2d, wg-x, wg-xy, wg-xyz, or roles such as x=e,y=f,z=f-gathered."
ATTENTION_HELP = "heads, batch, context, or roles such as x=heads,y=batch,z=context."
OVERLAP_HELP = (
    "Overlap of collectives with einsums: none, one-way, two-way, or pairs such as ffn/out/scatter=two-way."
)

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
ClusterName = Annotated[str, typer.Option("--on", metavar="CLUSTER", help="tpu-v4:4x4x4, or a TOML file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
MeshText = Annotated[str | None, typer.Option("--mesh", help=MESH_HELP)]
Weights = Annotated[str, typer.Option("--weights", help="Format of the weights: bf16, int8 or f32.")]
Kv = Annotated[str, typer.Option("--kv", help="Format of the KV cache: bf16, int8 or f32.")]
Activations = Annotated[str, typer.Option("--activations", help="Format of activations: bf16 or f32.")]
Reduce = Annotated[str, typer.Option("--reduce", help="Format in which partial sums are sent: f32 or bf16.")]
Phase = Annotated[str, typer.Option("--phase", help="prefill or decode.")]
Ffn = Annotated[str, typer.Option("--ffn", help=FFN_HELP)]
Attention = Annotated[str, typer.Option("--attention", help=ATTENTION_HELP)]
PrefillFfn = Annotated[
    str | None, typer.Option("--prefill-ffn", help="The same for prefill, where it differs.")
]
PrefillAttention = Annotated[
    str | None, typer.Option("--prefill-attention", help="The same for prefill, where it differs.")
]
RunFfn = Annotated[str | None, typer.Option("--ffn", help=f"{FFN_HELP} Default: ws2d.")]
RunAttention = Annotated[str | None, typer.Option("--attention", help=f"{ATTENTION_HELP} Default: batch.")]
RunDtype = Annotated[
    str, typer.Option("--dtype", help="f32, bf16, or auto: the format the devices are fast in.")
]
RunWeights = Annotated[
    str | None, typer.Option("--weights", help="int8; otherwise as in the plan or the checkpoint.")
]
RunKv = Annotated[str | None, typer.Option("--kv", help="int8 for the cache; otherwise as in the plan.")]
RunChunk = Annotated[int | None, typer.Option("--chunk", help="Most prompt tokens to read in one step.")]
PlanFile = Annotated[str | None, typer.Option("--plan", help="A plan.json, whose mesh and layouts are used.")]
Devices = Annotated[
    int | None, typer.Option("--devices", help="CPU devices to create where there is no accelerator.")
]
Force = Annotated[bool, typer.Option("--force", help="Go on where there seems to be too little memory.")]
Overlap = Annotated[str, typer.Option("--overlap", help=OVERLAP_HELP)]
Batch = Annotated[int, typer.Option("--batch", help="Sequences.")]
Context = Annotated[int | None, typer.Option("--context", help="Tokens in the cache, in a decode step.")]
Prompt = Annotated[int | None, typer.Option("--prompt", help="Prompt tokens of each sequence.")]
Output = Annotated[int, typer.Option("--output", help="Tokens each sequence generates.")]
Stages = Annotated[
    int,
    typer.Option("--stages", help="Pipeline stages over the slowest axis; the mesh is that of one stage."),
]
Prefix = Annotated[
    int, typer.Option("--prefix", help="Prompt tokens whose keys and values are cached already.")
]
Chunk = Annotated[
    int | None, typer.Option("--chunk", help="New prompt tokens per prefill step. Default: all of them.")
]
Samples = Annotated[int, typer.Option("--samples", help="Sequences generated for each prompt.")]

FORCED: Words = {"force": "--force"}
RUN: Words = {**FORCED, **{name: f"--{name} {{}}" for name in ("dtype", "weights", "kv", "chunk")}}
"""Options that make less of a run, as a refusal for want of memory says them."""


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
    from partita.api import read_model
    from partita.cost.setting import Setting, stage_of

    described, on = read_model(model), parse_cluster(cluster)
    shape = parse_mesh(mesh) if mesh else Mesh.of(stage_of(on, stages).shape)
    setting = Setting(described, on, shape, formats, workload, stages)
    _ = setting.peaks, setting.parts  # a mesh, format or number of stages that does not fit is refused here
    return setting


def read_phase(text: str) -> PhaseName:
    """Raises InputError (field "phase")."""
    if text not in ("prefill", "decode"):
        raise InputError("phase", text, "accepted are prefill, decode")
    return text


def read_mesh(mesh: str | None, devices: int | None) -> Mesh:
    """The mesh, by default all `devices` on one axis."""
    if mesh is not None:
        return parse_mesh(mesh)
    if devices is not None and devices < 1:
        raise InputError("devices", devices, "1 or more devices are accepted")
    return Mesh("x", (devices or 1,))


def read_placement(
    plan: str | None,
    mesh: str | None,
    devices: int | None,
    ffn: str | None,
    attention: str | None,
    prefill_ffn: str | None = None,
    prefill_attention: str | None = None,
) -> Placement:
    """The mesh and layouts of a plan file, or those the flags give; prefill's is decode's unless given."""
    if plan is not None:
        placement = placement_of(plan)
        given = {
            "mesh": mesh,
            "ffn": ffn,
            "attention": attention,
            "prefill-ffn": prefill_ffn,
            "prefill-attention": prefill_attention,
        }
        for field, value in given.items():
            if value is not None:
                raise InputError(field, value, "give it or --plan, which has a mesh and layouts of its own")
        return placement
    shape = read_mesh(mesh, devices)
    ffn, attention = ffn or "ws2d", attention or "batch"
    decode = parse_roles(ffn, attention, shape.axes)
    try:
        prefill = parse_roles(prefill_ffn or ffn, prefill_attention or attention, shape.axes)
    except InputError as error:
        raise InputError(f"prefill-{error.field}", error.value, error.message) from None
    return Placement(shape, prefill, decode)
