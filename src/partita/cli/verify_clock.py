"""`partita verify --clock`: estimated against measured times of steps, under several layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partita.api import read_model
from partita.cli import options as o
from partita.cli.output import progress_bar, show, show_json
from partita.cost.prediction import Prediction, predict
from partita.cost.setting import Setting
from partita.engine.load import Placement
from partita.errors import InputError
from partita.specs.cluster import parse_cluster
from partita.specs.formats import Formats
from partita.specs.workload import Workload

if TYPE_CHECKING:
    from rich.table import Table

    from partita.measure.clock import PhaseClock


@dataclass(frozen=True)
class Clocking:
    """What to time, as the flags give it. run: makes the one layout of each phase for the cluster's mesh;
    None to time `layouts` of each."""

    model: str
    on: str | None
    mesh: str | None
    run: Callable[[str], Placement] | None
    batch: int
    prompt: int
    context: int
    dtype: str
    devices: int | None
    layouts: int
    seconds: float
    force: bool = False


def clocked(asked: Clocking, *, json: bool) -> None:
    """Times the steps and prints the comparison."""
    setting, run = _setting(asked)
    from partita.engine.devices import devices_for

    devices = devices_for(setting.mesh.chips, asked.devices)
    predictions = _predictions(asked, setting, run)
    from partita.engine.engine import EngineOptions
    from partita.measure.clock import clock

    words = {**o.FORCED, **{name: f"--{name} {{}}" for name in ("batch", "prompt", "context")}}
    if "bf16" in setting.cluster.chip.peak_flops:
        words["dtype"] = o.RUN["dtype"]
    options = EngineOptions(force=asked.force, words=words)
    with progress_bar() as progress:
        phases = clock(predictions, devices, asked.seconds, progress, options)
    if json:
        show_json(as_json(setting, phases))
        return
    for phase in phases:
        show(table(phase), *summary(phase), "")
    show(
        f"Estimated by the profile {setting.cluster.name} before anything was measured; measured as the "
        "median of interleaved runs, each scaled by a probe beside it to the machine's best speed meanwhile."
        f"{_speed(phases)}"
    )


def _speed(phases: tuple[PhaseClock, ...]) -> str:
    slower = phases[0].runs[0].slower
    if slower == 1:
        return ""
    change = f"{abs(slower - 1):.0%} {'slower' if slower > 1 else 'faster'}"
    return f" The probe ran {change} than at calibration; no time here is corrected for that."


def _setting(asked: Clocking) -> tuple[Setting, Placement | None]:
    """What runs on the cluster of --on, and the one layout of each phase, if flags name it. Raises InputError
    for wrong flags."""
    if asked.on is None:
        raise InputError("on", None, "--clock needs the cluster that partita calibrate --save wrote")
    if not 1 <= asked.seconds <= 3600:
        raise InputError("seconds", asked.seconds, "1 to 3600 are accepted")
    if not 1 <= asked.layouts <= 100:
        raise InputError("layouts", asked.layouts, "1 to 100 are accepted")
    cluster = parse_cluster(asked.on)
    if cluster.profile is None:
        raise InputError("on", asked.on, "has no profile to estimate by; partita calibrate --save writes one")
    if asked.dtype not in cluster.chip.peak_flops:
        known = ", ".join(name for name in ("f32", "bf16") if name in cluster.chip.peak_flops)
        raise InputError("dtype", asked.dtype, f"{cluster.name} has no peak for it; accepted here: {known}")
    from partita.planner.layouts_to_time import mesh_of
    from partita.sharding.mesh import parse_mesh

    mesh = mesh_of(cluster.shape) if asked.mesh is None else parse_mesh(asked.mesh)
    run = None if asked.run is None else asked.run(str(mesh))
    mesh = mesh if run is None else run.mesh
    model, dtype = read_model(asked.model), asked.dtype
    formats = Formats.all_in(dtype)
    workload = Workload(prompt=asked.prompt, output=1, batch=asked.batch, context=asked.context)
    setting = Setting(model, cluster, mesh, formats, workload)
    from partita.engine.requests import check_model

    check_model(model)
    _ = setting.peaks  # refuses a mesh that is not the cluster's
    return setting, run


def _predictions(asked: Clocking, setting: Setting, run: Placement | None) -> list[Prediction]:
    """Both phases, priced. Raises InputError where no layout fits, or the named one does not."""
    from partita.planner.layouts_to_time import layouts_to_time

    if run is None:
        found = [
            *layouts_to_time(setting, "prefill", asked.layouts),
            *layouts_to_time(setting, "decode", asked.layouts),
        ]
    else:
        found = [predict(setting, "prefill", run.prefill), predict(setting, "decode", run.decode)]
        short = next((each for each in found if not each.fits), None)
        if short is not None:
            layout = f"{short.phase}'s layout {short.layout.roles}"
            raise InputError("model", asked.model, f"does not fit {setting.cluster.name} in {layout}")
    if not found:
        raise InputError("model", asked.model, f"no layout of it on mesh {setting.mesh} fits {asked.on}")
    return found


def as_json(setting: Setting, phases: tuple[PhaseClock, ...]) -> dict[str, Any]:
    """What `verify --clock --json` prints."""
    return {
        "schema": "partita.clock/1",
        "model": setting.model.name,
        "cluster": setting.cluster.name,
        "chips": setting.cluster.chips,
        "mesh": setting.mesh.size,
        "batch": setting.workload.batch,
        "prompt": setting.workload.prompt,
        "context": setting.workload.context,
        "dtype": setting.formats.activations,
        "slower_than_calibrated": phases[0].runs[0].slower,
        "phases": {
            phase.phase: {
                "median_error": phase.median_error,
                "rank_correlation": phase.rank_correlation,
                "pick": phase.pick.layout,
                "fastest": phase.fastest.layout,
                "pick_slower_by": phase.pick_slower_by,
                "inside_interval": phase.inside,
                "layouts": [
                    {
                        "layout": run.layout,
                        "bound_seconds": run.prediction.step_seconds,
                        "estimated_seconds": run.estimated_seconds,
                        "interval": list(run.interval),
                        "measured_seconds": run.measured_seconds,
                        "wall_seconds": run.timed.wall_seconds,
                        "visits": run.timed.visits,
                        "error": run.error,
                    }
                    for run in phase.runs
                ],
            }
            for phase in phases
        },
    }


def table(phase: PhaseClock) -> Table:
    """A row for each layout, by rising estimate."""
    from partita.report.tables import plain_table
    from partita.specs.units import format_seconds

    right = ("bound", "estimated", "measured", "error")
    found = plain_table(f"{phase.phase}: layout", *right, "", right=right)
    for run in sorted(phase.runs, key=lambda run: run.estimated_seconds):
        marks = [name for name, which in (("pick", phase.pick), ("fastest", phase.fastest)) if run is which]
        seconds = (run.prediction.step_seconds, run.estimated_seconds, run.measured_seconds)
        found.add_row(run.layout, *map(format_seconds, seconds), f"{run.error:+.0%}", ", ".join(marks))
    return found


def summary(phase: PhaseClock) -> list[str]:
    """The median error, the rank correlation, and what the planner's choice loses."""
    rank = phase.rank_correlation
    ranked = "" if rank is None else f", rank correlation {rank:.2f}"
    pick = (
        "the planner's pick is the fastest measured"
        if phase.pick is phase.fastest
        else f"the planner's pick takes {phase.pick_slower_by:.1%} longer than the fastest measured"
    )
    count = len(phase.runs)
    return [
        f"{phase.phase}: median error {phase.median_error:.1%} over {count} layouts{ranked}; {pick}; "
        f"{phase.inside:.0%} within the 90% interval"
    ]
