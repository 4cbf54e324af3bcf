"""`partita explain`: every operation of a plan's phases, or of one phase in a given layout."""

from __future__ import annotations

from typing import Annotated

import typer

from partita.cli import options as o
from partita.cli.output import show, show_json
from partita.cli.predict import priced, read_workload
from partita.errors import InputError
from partita.planner.saved import load_plan
from partita.report.explain import explanation, operations

What = Annotated[
    str, typer.Argument(metavar="PLAN|MODEL", help="A plan.json of `plan --save`, or MODEL with --on.")
]


def command(
    context_of_call: typer.Context,
    what: What,
    on: Annotated[str | None, typer.Option("--on", metavar="CLUSTER", help="tpu-v4:4x4x4, or TOML.")] = None,
    phase: o.Phase = "decode",
    mesh: o.MeshText = None,
    ffn: o.Ffn = "ws2d",
    attention: o.Attention = "batch",
    batch: o.Batch = 1,
    context: o.Context = None,
    prompt: o.Prompt = None,
    output: o.Output = 64,
    stages: o.Stages = 1,
    prefix: o.Prefix = 0,
    chunk: o.Chunk = None,
    samples: o.Samples = 1,
    weights: o.Weights = "bf16",
    kv: o.Kv = "bf16",
    activations: o.Activations = "bf16",
    reduce: o.Reduce = "f32",
    json: o.AsJson = False,
) -> None:
    """Show every operation: shardings in the paper's notation, bytes, its time by bound and estimate."""
    if on is None:
        for name, value in context_of_call.params.items():
            source = context_of_call.get_parameter_source(name)
            if name not in ("what", "json") and source is not None and source.name == "COMMANDLINE":
                raise InputError(name, value, "needs --on and a MODEL; a plan has its own")
        found = list(load_plan(what).predictions())
    else:
        one = o.read_phase(phase)
        workload = read_workload(batch, context, prompt, output, prefix, chunk, samples)
        formats = o.read_formats(weights, kv, activations, reduce)
        setting = o.read_setting(what, on, mesh, workload, formats, stages)
        found = [priced(setting, one, ffn, attention)]
    if json:
        phases = [{"phase": f.phase, "layout": str(f.layout.roles), "ops": operations(f)} for f in found]
        show_json({"schema": "partita.explanation/1", "phases": phases})
        return
    show(*(explanation(prediction) for prediction in found))
