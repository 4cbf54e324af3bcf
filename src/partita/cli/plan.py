"""`partita plan`: the best layout of each phase for a workload, on given chips or on as many as are best."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from partita.advice.advice import Advice
from partita.api import read_model
from partita.cli import options as o
from partita.cli import plan_options as p
from partita.cli.output import progress_console, show, show_json
from partita.errors import InputError
from partita.files import check_place, write_whole
from partita.planner import regimes
from partita.planner.chips import parse_clusters
from partita.planner.disaggregation import DisaggregatedPlan, plan_disaggregated, warnings
from partita.planner.frontier import over_batches
from partita.planner.pair import parse_basis
from partita.planner.plan import Plan, best_plan
from partita.planner.request import Case, PlanRequest
from partita.planner.saved import SavedPlan, load_plan
from partita.sharding.mesh import parse_mesh
from partita.specs.drafts import parse_draft
from partita.specs.units import parse_duration, parse_price, parse_rate

_SHOWN_FROM = 4
"""Cases from which on progress is shown."""


def command(
    model: o.ModelName,
    on: p.ClusterOrFamily,
    prompt: p.Prompt = None,
    output: p.Output = None,
    prefix: p.Prefix = None,
    trace: p.Trace = None,
    regime: p.RegimeName = None,
    batch: p.BatchText = None,
    prefill_batch: p.PrefillBatch = None,
    samples: Annotated[int, typer.Option("--samples", help="Sequences generated for each prompt.")] = 1,
    context: Annotated[
        int | None, typer.Option("--context", help="Tokens the cache holds. Default: prompt + output.")
    ] = None,
    chunk: p.Chunk = None,
    weights: p.WeightsText = None,
    kv: p.KvText = None,
    activations: o.Activations = "bf16",
    reduce: o.Reduce = "f32",
    objective: p.ObjectiveText = None,
    by: p.ByText = None,
    max_ttft: p.MaxTtft = None,
    max_tpot: p.MaxTpot = None,
    max_chips: p.MaxChips = None,
    memory: p.Memory = None,
    memory_utilization: p.MemoryUtilization = None,
    rate: p.Rate = None,
    price: Annotated[
        str | None, typer.Option("--price", help="Price of one chip for an hour, in your currency: 2.5.")
    ] = None,
    mesh: o.MeshText = None,
    stages: p.Stages = None,
    disaggregate: Annotated[
        bool, typer.Option("--disaggregate", help="Also plan prefill and decode on separate pools of chips.")
    ] = False,
    draft: p.DraftText = None,
    top: Annotated[int, typer.Option("--top", help="How many pairs of layouts to list.")] = 5,
    compare: Annotated[
        Path | None, typer.Option("--compare", help="A saved plan to compare with this one.")
    ] = None,
    engines: Annotated[
        bool, typer.Option("--engines", help="Also print the plan as options of other engines.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the frontier over batches into a .png or .svg file.")
    ] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write the plan as JSON.")] = None,
    json: o.AsJson = False,
) -> None:
    """Choose the layouts of both phases that serve the objective best, by the estimate or the bound."""
    preset = None if regime is None else regimes.regime(regime)
    sizes = p.read_sizes(batch, prefill_batch, chunk, stages, preset)
    tokens = p.TokenOptions(prompt, output, prefix, trace, preset)
    traffic = tokens.traffic()
    workload = p.read_workload(tokens, traffic, sizes, context, samples)
    memory_bytes, share = p.read_memory(memory, memory_utilization)
    request = PlanRequest(
        model=read_model(model),
        clusters=tuple(parse_clusters(on, max_chips)),
        formats=p.read_formats(weights, kv, activations, reduce, preset),
        workload=workload,
        traffic=traffic,
        objective=p.read_objective(objective, preset),
        auto_batch=sizes.auto_batch,
        auto_prefill_batch=sizes.auto_prefill_batch,
        auto_chunk=sizes.auto_chunk,
        between=sizes.between,
        mesh=None if mesh is None else parse_mesh(mesh),
        stages=sizes.stages,
        max_ttft=None if max_ttft is None else parse_duration(max_ttft, "max-ttft"),
        max_tpot=None if max_tpot is None else parse_duration(max_tpot, "max-tpot"),
        rate=None if rate is None else parse_rate(rate, "rate"),
        memory_bytes=memory_bytes,
        memory_utilization=share,
        basis=None if by is None else parse_basis(by),
        top=top,
    )
    drafts = None if draft is None else parse_draft(draft)
    paid = None if price is None else parse_price(price)
    other = None if compare is None else _other(compare)
    if plot is not None:
        from partita.report.plots import check_path

        check_path(plot)
        check_place(plot, "plot")
    if save is not None:
        check_place(save, "save")
    with _progress(len(request.cases())) as step:
        found = best_plan(request, step)
    pools = _pools(request, on) if disaggregate else None
    said = [] if pools is None else warnings(pools, request)
    if plot is not None:
        from partita.report.frontier import plot_frontier

        # else its frontier is over batches already
        if not request.auto_batch or len(request.batches(1)) == 1:
            found = replace(found, tables=over_batches(found.tables))
        plot_frontier(found, plot)
    advice = Advice(found, traffic, rate=request.rate, price=_price(found, paid), draft=drafts)
    if json or save is not None:
        written = advice.as_json(pools, other, said)
        if save is not None:
            write_whole(save, jsonlib.dumps(written, indent=1) + "\n", "save")
        if json:
            show_json(written)
            return
    from partita.report.plan import plan

    show(plan(advice, pools, other, engines=engines, warnings=said))


def _other(path: Path) -> SavedPlan:
    try:
        return load_plan(path)
    except InputError as error:
        raise InputError("compare", error.value, error.message) from None


def _price(plan: Plan, given: float | None) -> float | None:
    """The price of a chip-hour: as given, or else as the cluster's file says."""
    return plan.decode.setting.cluster.chip.price_per_hour if given is None else given


def _pools(request: PlanRequest, on: str) -> DisaggregatedPlan:
    """Units of the same family, of all sizes up to the cluster's chips."""
    family = on.partition(":")[0]
    most = request.clusters[-1].chips
    if on.lower().endswith(".toml"):
        raise InputError(
            "disaggregate", on, "needs a cluster family of the catalogue, whose smaller sizes are known"
        )
    return plan_disaggregated(request, parse_clusters(f"{family}:auto", most), most)


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[Case], None] | None]:
    """Shows how far a search over many clusters and formats is, on a terminal."""
    console = progress_console()
    if steps < _SHOWN_FROM or not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("searching", total=steps)

        def step(case: Case) -> None:
            name = case.cluster.name + (f", {case.stages} stages" if case.stages > 1 else "")
            bar.update(task, description=f"searching {name}")
            bar.advance(task)

        yield step
