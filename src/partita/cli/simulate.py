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
from partita.planner.pair import parse_basis
from partita.simulation.prices import Basis
from partita.simulation.result import Limits
from partita.simulation.server import Server
from partita.simulation.study import study
from partita.specs.hardware import MEMORY_UTILIZATION
from partita.specs.units import parse_duration


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
    max_ttft: Annotated[
        str | None, typer.Option("--max-ttft", help="Limit of a good request: 300ms.")
    ] = None,
    max_tpot: Annotated[str | None, typer.Option("--max-tpot", help="Limit of a good request: 30ms.")] = None,
    by: s.By = None,
    seed: s.Seed = 0,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw into a .png or .svg file.")] = None,
    json: o.AsJson = False,
) -> None:
    """Simulate a load: times that users see, goodput, queue and memory, by one or more policies."""
    policies = s.read_policies(policy)
    limits = Limits(
        None if max_ttft is None else parse_duration(max_ttft, "max-ttft"),
        None if max_tpot is None else parse_duration(max_tpot, "max-tpot"),
    )
    asked = s.LoadOptions(
        p.TokenOptions(prompt, output, prefix, trace, None), rate, arrivals, clients, requests, seed
    )
    traffic, load = asked.load()
    formats = o.read_formats(weights, kv, activations, reduce)
    layouts = (mesh, ffn, attention, prefill_ffn, prefill_attention)
    server = s.ServerOptions(what, on, *layouts, slots, formats, memory_share).server(traffic, load)
    basis = _basis(server, by)
    if plot is not None:
        from partita.report.plots import check_path

        check_path(plot)
        check_place(plot, "plot")
    skipped = skip
    if skipped is None:  # clients that all begin at once say nothing of how it goes on
        skipped = clients if clients is not None and clients < load.requests else 0
    found = study(server, policies, load, basis=basis, limits=limits, said=asked.as_json(load), skip=skipped)
    if plot is not None:
        from partita.report.simulation import plot_simulation

        plot_simulation(found, plot)
    if json:
        show_json(found.as_json())
        return
    from partita.report.simulation import simulation_note, simulation_table

    show(simulation_table(found), simulation_note(found))


def _basis(server: Server, by: str | None) -> Basis:
    """As asked, else the estimate where there is a profile: no layouts are ranked by it."""
    if by is not None:
        return parse_basis(by)
    return "bound" if server.setting.cluster.profile is None else "estimate"
