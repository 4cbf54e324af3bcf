"""`partita calibrate`: measures this machine and writes it as a cluster that the planner accepts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from partita.cli import options as o
from partita.cli.output import progress_bar, show, show_json
from partita.errors import InputError
from partita.files import check_place, write_whole

if TYPE_CHECKING:
    from rich.table import Table

    from partita.measure.calibrate.run import Calibration


def command(
    save: Annotated[
        Path | None, typer.Option("--save", help="Write the cluster with its profile, a .toml file for --on.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option("--devices", help="CPU devices to create where there is no accelerator.")
    ] = None,
    seconds: Annotated[
        float,
        typer.Option("--seconds", help="Seconds of measuring; compiling takes about half a minute more."),
    ] = 60.0,
    json: o.AsJson = False,
) -> None:
    """Measure this machine: matmuls, memory, collectives, whole steps; fit the profile of what they reach."""
    if save is not None:
        if save.suffix.lower() != ".toml":
            raise InputError("save", save, "a cluster's file must end in .toml, so that --on recognises it")
        check_place(save, "save")
    if not 1 <= seconds <= 3600:
        raise InputError("seconds", seconds, "1 to 3600 are accepted")
    import jax

    from partita.engine.devices import devices_for
    from partita.measure.calibrate.run import calibrate

    # devices are made before anything else asks JAX what there is
    chosen = jax.devices() if devices is None else devices_for(devices, devices)
    if jax.process_count() > 1:
        raise InputError("devices", f"{jax.process_count()} processes", "one process is measured at a time")
    with progress_bar() as progress:
        found = calibrate(chosen, save.stem if save else "here", seconds, progress)
    from partita.specs.toml import cluster_toml

    text = cluster_toml(found.cluster)
    if save is not None:
        write_whole(save, text, "save")
    if json:
        show_json(as_json(found))
        return
    show(rates(found), measurements(found), constants(found))
    if save is None:
        show("--save here.toml keeps this cluster; partita plan MODEL --on here.toml plans for it")
    else:
        show(f"wrote {save}: partita plan MODEL --on {save}")


def as_json(found: Calibration) -> dict[str, Any]:
    """The cluster as `--on` reads it, and every measurement beside what its profile makes of it."""
    return {
        "schema": "partita.calibration/1",
        "cluster": found.cluster.model_dump(mode="json", exclude_none=True),
        "measurements": {
            kind: [
                {
                    "what": r.what,
                    "measured_seconds": r.measured_seconds,
                    "estimated_seconds": r.estimated_seconds,
                    "error": r.error,
                }
                for r in residuals
            ]
            for kind, residuals in found.residuals.items()
        },
        "rates": [rate._asdict() for rate in found.rates],
    }


def rates(found: Calibration) -> Table:
    """What a device reached of arithmetic and of memory, all at work together."""
    from partita.report.tables import plain_table

    table = plain_table("each device", "reached", right=("reached",))
    for rate in found.rates:
        table.add_row(rate.what, f"{rate.per_second / 1e9:.3g} G{rate.unit.replace('bytes', 'B')}")
    return table


def measurements(found: Calibration) -> Table:
    """Every measurement, and how far the fit is from it."""
    from partita.report.tables import plain_table
    from partita.specs.units import format_seconds

    table = plain_table("measurement", "measured", "fitted", "error", right=("measured", "fitted", "error"))
    for residuals in found.residuals.values():
        for r in residuals:
            took, made = format_seconds(r.measured_seconds), format_seconds(r.estimated_seconds)
            table.add_row(r.what, took, made, f"{r.error:+.0%}")
        table.add_section()
    return table


def constants(found: Calibration) -> Table:
    """The profile's constants, with their 90% confidence intervals or the reason why they are fixed."""
    from partita.report.tables import plain_table

    table = plain_table("constant", "value", "90% interval", "meaning", right=("value", "90% interval"))
    from partita.specs.profile import term_of

    profile = found.cluster.profile
    assert profile is not None
    for name, constant in profile.constants.items():
        term = term_of(name)
        span = "fixed" if constant.fixed else f"{constant.low:.3g} to {constant.high:.3g}"
        meaning = constant.fixed or (f"{term.meaning} ({term.unit})" if term else "")
        table.add_row(name, f"{constant.value:.3g}", span, meaning)
    return table
