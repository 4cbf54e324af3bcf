"""`partita verify`: predicted against counted collective bytes and FLOPs, exactly."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Annotated

import typer

from partita.api import read_model
from partita.cli import options as o
from partita.cli.output import progress_console, show, show_json
from partita.cli.verify_clock import Clocking, clocked
from partita.engine.load import Placement
from partita.errors import InputError
from partita.program.options import RunOptions, overlap_of
from partita.sharding.mesh import parse_mesh
from partita.sharding.roles import ATTENTION_NAMES, FFN_NAMES, Roles, parse_roles
from partita.specs.formats import Formats
from partita.specs.workload import Workload

if TYPE_CHECKING:
    from partita.measure.verify import Check


def command(
    model: o.ModelName,
    mesh: o.MeshText = None,
    plan: o.PlanFile = None,
    ffn: Annotated[str | None, typer.Option("--ffn", help=f"{o.FFN_HELP} Default: all.")] = None,
    attention: Annotated[str | None, typer.Option("--attention", help=o.ATTENTION_HELP)] = None,
    prefill_ffn: o.PrefillFfn = None,
    prefill_attention: o.PrefillAttention = None,
    batch: o.Batch = 8,
    prompt: Annotated[int, typer.Option("--prompt", help="Prompt tokens of each sequence.")] = 16,
    context: Annotated[int, typer.Option("--context", help="Tokens the cache holds.")] = 32,
    dtype: Annotated[str, typer.Option("--dtype", help="f32, also counted in HLO, or bf16.")] = "f32",
    devices: o.Devices = None,
    overlap: o.Overlap = "none",
    clock: Annotated[
        bool, typer.Option("--clock", help="Time steps and compare them with the estimates for --on.")
    ] = False,
    on: Annotated[
        str | None, typer.Option("--on", help="With --clock: the file that partita calibrate wrote.")
    ] = None,
    layouts: Annotated[
        int,
        typer.Option(
            "--layouts", help="With --clock: how many layouts of each phase, from the best to poor ones."
        ),
    ] = 10,
    seconds: Annotated[
        float, typer.Option("--seconds", help="With --clock: seconds of timing, compiling not included.")
    ] = 60.0,
    force: o.Force = False,
    json: o.AsJson = False,
) -> None:
    """Compare the bytes or times that the cost model predicts with those of the compiled program."""
    if dtype not in ("f32", "bf16"):
        raise InputError("dtype", dtype, "accepted are f32, bf16")
    if clock:
        if overlap != "none":
            raise InputError("overlap", overlap, "is not for --clock: estimates do not count overlap")
        named = (
            ffn is not None or attention is not None or prefill_ffn or prefill_attention or plan is not None
        )

        def layout(whole: str) -> Placement:
            given = whole if mesh is None and plan is None else mesh
            return o.read_placement(plan, given, None, ffn, attention, prefill_ffn, prefill_attention)

        one = layout if named else None
        asked = Clocking(
            model, on, mesh, one, batch, prompt, context, dtype, devices, layouts, seconds, force
        )
        clocked(asked, json=json)
        return
    if on is not None:
        raise InputError("on", on, "is for --clock, which compares times; bytes do not depend on the cluster")
    if mesh is None and plan is None:
        raise InputError("mesh", None, f"--mesh or --plan is needed; {o.MESH_HELP}")
    workload = Workload(prompt=prompt, output=1, batch=batch, context=context)
    if plan is None and ffn is None and attention is None and not (prefill_ffn or prefill_attention):
        shape = parse_mesh(mesh or "")
        named = [parse_roles(f, a, shape.axes) for f, a in product(FFN_NAMES, ATTENTION_NAMES)]
        # every layout in both phases; the second phase one further on, so that the cache is resharded too
        pairs: list[tuple[Roles, Roles]] = [(r, named[(i + 3) % len(named)]) for i, r in enumerate(named)]
    else:
        run = o.read_placement(plan, mesh, None, ffn, attention, prefill_ffn, prefill_attention)
        shape, pairs = run.mesh, [(run.prefill, run.decode)]
    described = read_model(model)
    formats, run_options = Formats.all_in(dtype), RunOptions(overlap_of(overlap))
    from partita.engine.devices import devices_for

    chosen = devices_for(shape.chips, devices)
    from partita.engine.engine import EngineOptions
    from partita.measure.verify import verify

    console = progress_console()
    checks: list[Check] = []
    with console.status("tracing and compiling") as status:
        options = EngineOptions(chosen, run_options)
        for check in verify(described, shape, pairs, formats, workload, options):
            checks.append(check)
            status.update(f"{len(checks)} of {3 * len(pairs)}: {check.phase} {check.layout}")
    exact = all(check.exact for check in checks)
    if json:
        show_json({"exact": exact, "checks": [as_json(check) for check in checks]})
    else:
        show(table(checks), "exact" if exact else "NOT exact")
    if not exact:
        raise typer.Exit(1)


def as_json(check: Check) -> dict:
    """One check as `verify --json` prints it."""
    return {
        "layout": check.layout,
        "phase": check.phase,
        "exact": check.exact,
        "predicted": check.predicted.by_kind(),
        "counted": check.counted.by_kind(),
        "compiled": check.compiled.by_kind() if check.compiled else None,
        "flops": {"predicted": check.predicted.flops, "counted": check.counted.flops},
        "messages": {
            "predicted": sum(check.predicted.messages.values()),
            "counted": sum(check.counted.messages.values()),
        },
        "memory": check.memory and dict(zip(("predicted", "compiled"), check.memory, strict=True)),
    }


def table(checks: list[Check]):
    """Predicted against counted bytes a chip sends, a row for each check and kind of collective."""
    from partita.report.tables import plain_table

    right = ("predicted bytes", "counted in trace", "in compiled HLO")
    found = plain_table("phase", "layout", "collective", *right, "", right=right)
    for check in checks:
        predicted, counted = check.predicted.by_kind(), check.counted.by_kind()
        compiled = check.compiled.by_kind() if check.compiled else {}
        for kind in sorted({*predicted, *counted, *compiled}) or ["none"]:
            cells = [predicted.get(kind, 0), counted.get(kind, 0), compiled.get(kind, 0)]
            shown = [f"{cell:,}" for cell in cells]
            if check.compiled is None:
                shown[2] = "not counted"
            found.add_row(check.phase, check.layout, kind, *shown, "=" if check.exact else "DIFFERS")
        if check.memory is not None:
            predicted_bytes, compiled_bytes = check.memory
            fits = "within" if compiled_bytes <= predicted_bytes else "MORE"
            sizes = (f"{predicted_bytes:,}", "", f"{compiled_bytes:,}")
            found.add_row(check.phase, check.layout, "memory", *sizes, fits)
    return found
