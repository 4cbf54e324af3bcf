"""`partita simulate`: what users see of a model under a load, by the scheduler that serves it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from partita.cli import options as o
from partita.cli import plan_options as p
from partita.cli import simulate_options as s
from partita.cli.output import show, show_json
from partita.files import check_place
from partita.simulation.study import study
from partita.specs.hardware import MEMORY_UTILIZATION


def command(
    what: s.What,
    on: s.On = None,
    rate: s.Rate = None,
    arrivals: s.Arrivals = "poisson",
    clients: s.Clients = None,
    trace: s.Trace = None,
    requests: s.Requests = None,
    skip: s.Skip = None,
    prompt: p.Prompt = None,
    output: p.Output = None,
    prefix: p.Prefix = None,
    policy: s.PolicyText = "switching",
    slots: s.Slots = None,
    mesh: o.MeshText = None,
    ffn: s.FfnText = None,
    attention: s.AttentionText = None,
    prefill_ffn: o.PrefillFfn = None,
    prefill_attention: o.PrefillAttention = None,
    weights: o.Weights = "bf16",
    kv: o.Kv = "bf16",
    activations: o.Activations = "bf16",
    reduce: o.Reduce = "f32",
    memory_share: s.MemoryShare = MEMORY_UTILIZATION,
    max_ttft: s.MaxTtft = None,
    max_tpot: s.MaxTpot = None,
    by: s.By = None,
    seed: s.Seed = 0,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw into a .png or .svg file.")] = None,
    json: o.AsJson = False,
) -> None:
    """Simulate a load: times that users see, goodput, queue and memory, by one or more policies."""
    policies = s.read_policies(policy)
    limits = s.read_limits(max_ttft, max_tpot)
    asked = s.LoadOptions(
        p.TokenOptions(prompt, output, prefix, trace, None), rate, arrivals, clients, requests, seed
    )
    traffic, load = asked.load()
    formats = o.read_formats(weights, kv, activations, reduce)
    layouts = (mesh, ffn, attention, prefill_ffn, prefill_attention)
    server = s.ServerOptions(what, on, *layouts, slots, formats, memory_share).server(traffic, load)
    basis = s.read_basis(server, by)
    if plot is not None:
        from partita.report.plots import check_path

        check_path(plot)
        check_place(plot, "plot")
    skipped = asked.skipped(skip, load)
    found = study(server, policies, load, basis=basis, limits=limits, said=asked.as_json(load), skip=skipped)
    if plot is not None:
        from partita.report.simulation import plot_simulation

        plot_simulation(found, plot)
    if json:
        show_json(found.as_json())
        return
    from partita.report.simulation import simulation_note, simulation_table

    show(simulation_table(found), simulation_note(found))
