"""Machines that are not here, and times of them that a known profile makes, with noise."""

import math
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from partita.cost.links import mesh_links
from partita.cost.phase_estimate import estimated_seconds
from partita.cost.roofline import peaks
from partita.measure.calibrate import collectives, layers, matmul, memory, run
from partita.measure.calibrate.machine import Machine, machine
from partita.measure.calibrate.run import Calibration, Key
from partita.measure.stopwatch import Timed, Timings
from partita.sharding.mesh import Mesh
from partita.specs import Constant, Profile
from partita.specs.cluster import Cluster
from partita.specs.formats import Format, Formats
from partita.specs.hardware import Chip, PhysicalAxis


def device(platform: str, id: int, process: int = 0, coords: tuple[int, ...] | None = None, **more: Any):
    """As much of a JAX device as calibration looks at."""
    placed = {} if coords is None else {"coords": coords}
    return SimpleNamespace(
        platform=platform,
        id=id,
        process_index=process,
        device_kind={"cpu": "cpu", "gpu": "NVIDIA A100", "tpu": "TPU v5 lite"}[platform],
        memory_stats=lambda: more.get("memory"),
        **placed,
    )


def gpus(processes: int, each: int) -> list[Any]:
    return [
        device("gpu", i, i // each, memory={"bytes_limit": 30_000_000_000}) for i in range(processes * each)
    ]


def cluster(machine: Machine) -> Cluster:
    """What such a machine might reach at most."""
    flops: dict[Format, float]
    link: dict[str, float]
    if machine.shared:
        flops = {"f32": 1.2e10, "bf16": 3e9}
        link = {"switch": 8e8}
        memory_rate = 1.5e9
    else:
        flops = {"f32": 2e13, "bf16": 3e14}
        memory_rate = 2e12
        link = {"switch": 2e11, "network": 2e10, "torus": 4e10}
    fabric = tuple(
        PhysicalAxis(kind=kind, size=size, link_bandwidth=link[kind], links=2 if kind == "torus" else 1)
        for kind, size in machine.fabric
    )
    chip = Chip(name="made", peak_flops=flops, hbm_bytes=machine.memory_bytes, hbm_bandwidth=memory_rate)
    return Cluster(name="made", chip=chip, fabric=fabric)


def truth(machine: Machine) -> Profile:
    """Efficiencies of it, of the kinds that calibration fits."""
    values = {
        "matmul_share": 0.8,
        "half_rows": 12.0 if machine.shared else 100.0,
        "memory_share": 0.6,
        "activation_share": 0.5,
    }
    values |= {"layer_seconds": 1e-4, "step_seconds": 6e-4}
    message = {"switch": 4e-5, "network": 1e-4, "torus": 2e-5}
    for kind, size in machine.fabric:
        if size > 1:
            shares = (0.7, 0.5, 0.6, 0.4, 0.3)
            values |= {
                f"{kind}/{collective}/share": share
                for collective, share in zip(collectives.COLLECTIVES, shares, strict=True)
            }
            values |= {f"{kind}/message_seconds": message[kind], f"{kind}/hop_seconds": 1.5e-5}
            values |= {f"{kind}/collective-permute/message_seconds": 3e-5}
            values |= {f"{kind}/all-reduce/message_seconds": 5e-5}
            if machine.shared:
                values |= {f"{kind}/own_share": 1.0}
    constants = {name: Constant(value=value, fixed="made") for name, value in values.items()}
    return Profile(name="made", source="here", constants=constants)


def seconds(key: Key, on: Cluster, profile: Profile) -> float:
    """Seconds of one program, without noise."""
    match key:
        case matmul.Matmul():
            formats = Formats(weights=key.dtype, activations=key.dtype, kv=key.dtype)
            return matmul.estimated(key, peaks(on.chip, formats, mesh_links(Mesh.of(on.shape), on)), profile)
        case memory.MemoryRead():
            return key.bytes * key.times / on.chip.hbm_bandwidth
        case collectives.Collective():
            return collectives.estimated(key, on, profile)
        case layers.Layered():
            return estimated_seconds(key.predicted(on).run, profile)


def programs(machine: Machine) -> list[Key]:
    """All that calibration times."""
    kinds = (matmul, memory, collectives, layers)
    return [key for kind in kinds for key in kind.settings(machine)]


def timings(machine: Machine, seed: int, noise: float = 0.03) -> Timings[Key]:
    """Measurements of all programs, as `truth` has them, with log-normal noise."""
    on, profile, random = cluster(machine), truth(machine), np.random.default_rng(seed)
    found = {}
    for key in programs(machine):
        took = seconds(key, on, profile) * math.exp(random.normal(0, noise))
        found[key] = Timed(seconds=took, wall_seconds=took, visits=3)
    return Timings(found, 1e-3)


MACHINES = {
    "8 CPU devices": machine([device("cpu", i) for i in range(8)]),
    "a GPU": machine(gpus(1, 1)),
    "2 x 4 GPUs": machine(gpus(2, 4)),
    "4 TPUs": machine([device("tpu", i, 0, (i // 2, i % 2, 0)) for i in range(4)]),
}


@cache
def calibration(name: str, seed: int) -> tuple[Timings[Key], Calibration]:
    """Measurements of one of the machines, and what is fitted to them."""
    timed = timings(MACHINES[name], seed)
    return timed, run.fitted(MACHINES[name], timed, "here")


def bound_seconds(key: Key, on: Cluster) -> float:
    """Seconds of one program, by the roofline at the cluster's peaks."""
    match key:
        case matmul.Matmul(dtype=dtype):
            arithmetic = key.flops / on.chip.peak(dtype)
            return max(arithmetic, key.read_bytes / on.chip.hbm_bandwidth)
        case memory.MemoryRead():
            return key.bytes * key.times / on.chip.hbm_bandwidth
        case collectives.Collective():
            links, axes = collectives.along(key, on)
            return key.times * float(links.seconds(key.kind, axes, key.sent_bytes))
        case layers.Layered():
            return key.predicted(on).run.total_seconds()
