"""`partita predict`: one phase in one given layout."""

from __future__ import annotations

from partita.cli import options as o
from partita.cli.output import show, show_json
from partita.cost.prediction import Prediction, predict
from partita.cost.setting import Setting
from partita.planner.infeasible import alone_fits
from partita.planner.model_limits import cautions, check_positions
from partita.sharding.roles import parse_roles
from partita.specs.profile import Phase
from partita.specs.workload import Workload


def read_workload(
    batch: int,
    context: int | None,
    prompt: int | None,
    output: int,
    prefix: int,
    chunk: int | None,
    samples: int,
) -> Workload:
    """`--context` and `--prompt` stand in for each other where only one is given; the default of both is
    2048."""
    tokens = next((n for n in (context, prompt) if n is not None), 2048)
    return Workload(
        prompt=max(tokens, 1) if prompt is None else prompt,  # a context of 0 is refused as the context
        output=output,
        batch=batch,
        context=tokens if context is None else context,
        prefix=prefix,
        chunk=chunk,
        samples=samples,
    )


def priced(setting: Setting, phase: Phase, ffn: str, attention: str) -> Prediction:
    """The prediction the flags ask for; raises InputError where it does not fit the chips, or the model has
    no positions for it."""
    check_positions(setting.model, setting.workload)
    found = predict(setting, phase, parse_roles(ffn, attention, setting.mesh.axes))
    alone_fits(found)
    return found


def command(
    model: o.ModelName,
    on: o.ClusterName,
    phase: o.Phase,
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
    """Price one phase of a model in one layout."""
    one = o.read_phase(phase)
    workload = read_workload(batch, context, prompt, output, prefix, chunk, samples)
    formats = o.read_formats(weights, kv, activations, reduce)
    setting = o.read_setting(model, on, mesh, workload, formats, stages)
    found = priced(setting, one, ffn, attention)
    if json:
        show_json(found.as_json())
        return
    from partita.report.predictions import estimate_note, prediction_table

    said = cautions(setting.model, workload)
    show(*map(str, said), prediction_table([found]), estimate_note([found]))
