"""`partita plan`: the best layout of each phase for a workload."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from partita.cli import options as o
from partita.cli.output import show, show_json
from partita.errors import InputError
from partita.files import write_whole
from partita.planner.plan import make_plan, make_plan_any_batch, parse_objective
from partita.specs.units import parse_duration
from partita.specs.workload import Workload


def command(
    model: o.ModelName,
    on: o.ClusterName,
    prompt: Annotated[int, typer.Option("--prompt", help="Prompt tokens of each sequence.")] = 2048,
    output: Annotated[int, typer.Option("--output", help="Tokens each sequence generates.")] = 64,
    batch: Annotated[str, typer.Option("--batch", help="Sequences decoded together, or auto.")] = "auto",
    prefill_batch: Annotated[
        int | None, typer.Option("--prefill-batch", help="Sequences prefilled together.")
    ] = None,
    context: Annotated[
        int | None, typer.Option("--context", help="Tokens the cache holds; prompt + output unless given.")
    ] = None,
    weights: o.Weights = "bf16",
    kv: o.Kv = "bf16",
    activations: o.Activations = "bf16",
    reduce: o.Reduce = "f32",
    objective: Annotated[
        str, typer.Option("--objective", help="latency, cost, throughput or context.")
    ] = "latency",
    max_ttft: Annotated[str | None, typer.Option("--max-ttft", help="Limit on prefill: 300ms.")] = None,
    max_tpot: Annotated[str | None, typer.Option("--max-tpot", help="Limit on a decode step: 30ms.")] = None,
    mesh: o.MeshText = None,
    top: Annotated[int, typer.Option("--top", help="How many pairs of layouts to list.")] = 5,
    save: Annotated[Path | None, typer.Option("--save", help="Write the plan as JSON.")] = None,
    json: o.AsJson = False,
) -> None:
    """Choose the layouts of both phases that serve the objective best, by the bound."""
    goal = parse_objective(objective)
    auto = batch == "auto"
    if not auto and not (batch.isdecimal() and len(batch) < 20):
        raise InputError("batch", batch, "a whole number of at least 1, or auto, is accepted")
    if auto and prefill_batch is not None:
        raise InputError(
            "prefill-batch", prefill_batch, "needs --batch N: with auto both phases have one batch"
        )
    workload = Workload(
        prompt=prompt,
        output=output,
        batch=1 if auto else int(batch),
        prefill_batch=prefill_batch,
        context=context,
    )
    setting = o.read_setting(model, on, mesh, workload, o.read_formats(weights, kv, activations, reduce))
    search = make_plan_any_batch if auto else make_plan
    found = search(
        setting,
        goal,
        max_ttft=None if max_ttft is None else parse_duration(max_ttft, "max-ttft"),
        max_tpot=None if max_tpot is None else parse_duration(max_tpot, "max-tpot"),
        top=top,
    )
    if save is not None:
        write_whole(save, jsonlib.dumps(found.as_json(), indent=1) + "\n", "save")
    if json:
        show_json(found.as_json())
        return
    from partita.report.tables import plan

    show(plan(found))
