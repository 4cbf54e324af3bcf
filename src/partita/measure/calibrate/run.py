"""The whole calibration: times everything, makes a cluster of the peaks seen, and fits its profile."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple

import jax

from partita.cost.links import mesh_links
from partita.cost.phase_estimate import asked_of, estimated_seconds
from partita.cost.roofline import peaks
from partita.measure.calibrate import collectives, constants, layers, matmul, memory
from partita.measure.calibrate.machine import Machine, machine
from partita.measure.fit import Measurement, leave_out, region_of, with_held_out
from partita.measure.stopwatch import Run, Timed, Timings, time_each
from partita.sharding.mesh import Mesh
from partita.specs.cluster import Cluster
from partita.specs.formats import Formats
from partita.specs.hardware import Chip, PhysicalAxis

Key = matmul.Matmul | memory.MemoryRead | collectives.Collective | layers.Layered

BUDGET_SECONDS = 60.0
"""Seconds of measuring; compiling takes more."""

_HEADROOM = 1.05
"""Peaks over the best rates seen: what was seen has starts in it, and a clock repeats within some percent."""

_ALONE = 0.3
"""Weight of an operation measured alone: in the middle of a step the same one takes up to half as long
again, for its neighbours' traffic and copies, and steps are what is to be estimated."""


class Residual(NamedTuple):
    """One measurement and what the fitted profile makes of it."""

    what: str
    measured_seconds: float
    estimated_seconds: float

    @property
    def error(self) -> float:
        """Estimated over measured, less 1."""
        return self.estimated_seconds / self.measured_seconds - 1


class Rate(NamedTuple):
    """What one device reached while all worked at once."""

    what: str
    per_second: float
    unit: str


@dataclass(frozen=True)
class Calibration:
    """A cluster that is the machine, and how its profile fits what was measured, by kind of measurement."""

    cluster: Cluster
    residuals: dict[str, list[Residual]]
    rates: list[Rate]


def calibrate(
    devices: Sequence[Any],
    name: str = "here",
    budget_seconds: float = BUDGET_SECONDS,
    progress: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> Calibration:
    """Measures the machine of `devices`. `progress(what, done, of)` is called all along."""
    here = machine(devices)
    runs = _compiled(here, progress)
    probe = matmul.program(here, matmul.probe(here))
    timings = time_each(runs, probe, budget_seconds, lambda done, of: progress("timing", done, of))
    return fitted(here, timings, name, progress)


def _compiled(here: Machine, progress: Callable[[str, int, int], None]) -> dict[Key, Run]:
    steps = list(layers.settings(here))
    alone = [*matmul.settings(here), *memory.settings(here), *collectives.settings(here)]
    runs: dict[Key, Run] = {}
    for each in alone:
        progress(f"compiling {each}", len(runs), len(alone) + len(steps))
        if isinstance(each, matmul.Matmul):
            runs[each] = matmul.program(here, each)
        elif isinstance(each, memory.MemoryRead):
            runs[each] = memory.program(here, each)
        else:
            runs[each] = collectives.program(here, each)
    for step, run in layers.programs(here, steps):
        runs[step] = run
        progress(f"compiling {step}", len(runs), len(alone) + len(steps))
    return runs


def fitted(
    here: Machine,
    timings: Timings[Key],
    name: str,
    progress: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> Calibration:
    """The cluster and profile of what the clock said."""
    timed = timings.runs
    bare = cluster_of(here, timed, name)
    points = {key: as_point(key, t.seconds, bare) for key, t in timed.items() if tells(key, here)}
    progress("fitting the profile", 0, 1)
    found = constants.fitted(list(points.values()), constants.template(here), constants.starts(here))
    start = {name: found.profile.constants[name].value for name in found.determined}
    progress("trying it on what it has not seen", 0, 1)
    apart = leave_out(list(points.values()), found.template, start, constants.SCALE)
    profile = with_held_out(
        found.profile.model_copy(
            update={
                "name": name,
                "probe_seconds": timings.probe_seconds,
                "source": _source(here, len(points)),
                "region": region_of(list(points.values())),
                "compares": len({key.roles for key in points if isinstance(key, layers.Layered)}) > 1,
            }
        ),
        apart,
    )
    residuals: dict[str, list[Residual]] = {}
    for key, point in points.items():
        residual = Residual(point.label, point.seconds, point.seconds_by(profile))
        residuals.setdefault(type(key).__name__.lower(), []).append(residual)
    return Calibration(bare.model_copy(update={"profile": profile}), residuals, list(_rates(timed)))


def _rates(timed: dict[Key, Timed]) -> Iterator[Rate]:
    """The rates of matmuls and of reading memory, whether a constant is fitted to them or not."""
    for key, t in timed.items():
        if isinstance(key, matmul.Matmul):
            yield Rate(str(key), key.flops / t.seconds, "FLOP/s")
        elif isinstance(key, memory.MemoryRead):
            yield Rate(str(key), key.read_bytes / t.seconds, "bytes/s")


def cluster_of(here: Machine, timed: dict[Key, Timed], name: str) -> Cluster:
    """Peaks that no program beat: the best rates seen, and `_HEADROOM` over them.

    Where a step of a model was faster than those rates alone allow, all of them rise until it was not.
    """
    bare = _best_rates(here, timed, name)
    bounds = [
        key.predicted(bare).run.total_seconds() / t.seconds
        for key, t in timed.items()
        if isinstance(key, layers.Layered)
    ]
    return _faster(bare, _HEADROOM * max(1.0, *bounds))


def _best_rates(here: Machine, timed: dict[Key, Timed], name: str) -> Cluster:
    flops: dict[str, float] = {}
    rates = [key.read_bytes / t.seconds for key, t in timed.items() if isinstance(key, memory.MemoryRead)]
    for key, t in timed.items():
        if isinstance(key, matmul.Matmul):
            flops[key.dtype] = max(key.flops / t.seconds, flops.get(key.dtype, 0.0))
            rates.append(key.read_bytes / t.seconds)
    fabric = []
    for axis, (kind, size) in enumerate(here.fabric):
        sent = [
            (key.copied_bytes if here.shared else key.sent_bytes) * key.times / t.seconds
            for key, t in timed.items()
            if isinstance(key, collectives.Collective) and key.axis == axis
        ]
        links = 2 if kind == "torus" else 1
        # an axis of one chip has no links; the memory's rate stands for them
        fabric.append(
            PhysicalAxis(kind=kind, size=size, links=links, link_bandwidth=max(sent or rates) / links)
        )
    chip = Chip(
        name=_kind(here),
        peak_flops=flops,  # pyright: ignore[reportArgumentType]  its keys are formats
        hbm_bytes=here.memory_bytes,
        hbm_bandwidth=max(rates),
    )
    return Cluster(name=name, chip=chip, fabric=tuple(fabric))


def _faster(cluster: Cluster, times: float) -> Cluster:
    """All peaks so many times as high."""
    chip = cluster.chip
    flops = {format: times * rate for format, rate in chip.peak_flops.items()}
    chip = chip.model_copy(update={"peak_flops": flops, "hbm_bandwidth": times * chip.hbm_bandwidth})
    fabric = tuple(
        axis.model_copy(update={"link_bandwidth": times * axis.link_bandwidth}) for axis in cluster.fabric
    )
    return cluster.model_copy(update={"chip": chip, "fabric": fabric})


def tells(key: Key, here: Machine) -> bool:
    """Whether it says what operations reach in the format that models are run in, and not what is
    possible."""
    if isinstance(key, matmul.Matmul):
        return key.dtype == layers.dtype(here)
    return not isinstance(key, memory.MemoryRead)


def as_point(key: Any, seconds: float, bare: Cluster) -> Measurement:
    """A measurement as a fit takes it, on a cluster of such peaks."""
    if isinstance(key, matmul.Matmul):
        rates = peaks(bare.chip, Formats.all_in(key.dtype), mesh_links(Mesh.of(bare.shape), bare))
        return Measurement(
            str(key), (), seconds, lambda profile: matmul.estimated(key, rates, profile), weight=_ALONE
        )
    if isinstance(key, collectives.Collective):
        return Measurement(
            str(key), (), seconds, lambda profile: collectives.estimated(key, bare, profile), weight=_ALONE
        )
    work = key.predicted(bare).run
    size = f"{key.phase} of {key.batch} x {key.tokens}"
    groups = (size,) if key.mesh.chips == 1 else (str(key.roles), size)  # one chip has one layout
    return Measurement(
        str(key), groups, seconds, lambda profile: estimated_seconds(work, profile), (asked_of(work),)
    )


def _kind(here: Machine) -> str:
    return "cpu-device" if here.shared else here.devices[0].device_kind.lower().replace(" ", "-")


def _source(here: Machine, points: int) -> str:
    found = (
        f"partita calibrate on {date.today().isoformat()}: {points} measurements of {here.chips} "
        f"{here.platform} devices with JAX {jax.__version__}"
    )
    if not here.shared:
        return found
    return (
        f"{found}, threads that share {_cores()} cores ({platform.machine()}): a device's peaks are its part "
        "of what all reach together"
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
