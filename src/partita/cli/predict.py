"""`partita predict`: one phase in one given layout."""

from __future__ import annotations

from typing import Annotated

import typer

from partita.cli import options as o
from partita.cli.output import show, show_json
from partita.cost.prediction import Prediction, predict
from partita.errors import InputError
from partita.planner.misfit import alone_fits
from partita.sharding.roles import parse_roles
from partita.specs.workload import Workload

Phase = Annotated[str, typer.Option("--phase", help="prefill or decode.")]
Ffn = Annotated[str, typer.Option("--ffn", help=o.FFN_HELP)]
Attention = Annotated[str, typer.Option("--attention", help=o.ATTENTION_HELP)]
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
    int | None, typer.Option("--chunk", help="New prompt tokens a prefill step; all of them unless given.")
]
Samples = Annotated[int, typer.Option("--samples", help="Sequences written for each prompt.")]


def priced(
    model: str,
    cluster: str,
    phase: str,
    mesh: str | None,
    ffn: str,
    attention: str,
    batch: int,
    context: int | None,
    prompt: int | None,
    output: int,
    formats: tuple[str, str, str, str],
    stages: int = 1,
    prefix: int = 0,
    chunk: int | None = None,
    samples: int = 1,
) -> Prediction:
    """The prediction the flags ask for; raises InputError where it does not fit the chips.

    `--context` and `--prompt` stand in for each other where only one is given; the default of both is 2048.
    """
    if phase not in ("prefill", "decode"):
        raise InputError("phase", phase, "accepted are prefill, decode")
    tokens = next((n for n in (context, prompt) if n is not None), 2048)
    workload = Workload(
        prompt=max(tokens, 1) if prompt is None else prompt,  # a context of 0 is refused as the context
        output=output,
        batch=batch,
        context=tokens if context is None else context,
        prefix=prefix,
        chunk=chunk,
        samples=samples,
    )
    setting = o.read_setting(model, cluster, mesh, workload, o.read_formats(*formats), stages)
    found = predict(setting, phase, parse_roles(ffn, attention, setting.mesh.axes))
    alone_fits(found)
    return found


def command(
    model: o.ModelName,
    on: o.ClusterName,
    phase: Phase,
    mesh: o.MeshText = None,
    ffn: Ffn = "ws2d",
    attention: Attention = "batch",
    batch: Batch = 1,
    context: Context = None,
    prompt: Prompt = None,
    output: Output = 64,
    stages: Stages = 1,
    prefix: Prefix = 0,
    chunk: Chunk = None,
    samples: Samples = 1,
    weights: o.Weights = "bf16",
    kv: o.Kv = "bf16",
    activations: o.Activations = "bf16",
    reduce: o.Reduce = "f32",
    json: o.AsJson = False,
) -> None:
    """Price one phase of a model in one layout."""
    formats = (weights, kv, activations, reduce)
    portions = (stages, prefix, chunk, samples)
    found = priced(model, on, phase, mesh, ffn, attention, batch, context, prompt, output, formats, *portions)
    if json:
        show_json(found.as_json())
        return
    from partita.report.predictions import estimate_note, prediction_table

    show(prediction_table([found]), estimate_note([found]))
