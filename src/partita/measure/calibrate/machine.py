"""What the machine is: its devices, how they are joined, and the memory of each. Times nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

Kind = Literal["torus", "switch", "network"]


@dataclass(frozen=True)
class Machine:
    """Devices, and the kind and size of each physical axis, slowest first. Devices are in the axes' order.

    `shared`: the devices are threads of one processor, so that the work of all adds up.
    """

    devices: tuple[Any, ...]
    fabric: tuple[tuple[Kind, int], ...]
    memory_bytes: int  # of one device
    shared: bool

    @property
    def platform(self) -> str:
        """The name that JAX has for it: "cpu", "gpu" or "tpu"."""
        return self.devices[0].platform

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the physical axes, slowest first."""
        return tuple(size for _, size in self.fabric)

    @property
    def chips(self) -> int:
        return len(self.devices)

    def grid(self, axis: int, chips: int) -> Mesh:
        """All devices as a mesh ("x", "y"): groups of `chips` neighbours along a physical axis."""
        sizes = self.shape
        grid = np.array(self.devices).reshape(*sizes[:axis], sizes[axis] // chips, chips, *sizes[axis + 1 :])
        grid = np.moveaxis(grid, axis + 1, -1).reshape(-1, chips)
        return Mesh(grid, ("x", "y"), axis_types=(AxisType.Explicit,) * 2)


def machine(devices: Sequence[Any]) -> Machine:
    """The machine of these devices: those of one process share a switch, TPUs lie on a torus.

    Where processes have unlike numbers of devices, or some of a torus is missing, no axis says so: all
    devices are on one network, or on one switch.
    """
    devices = list(devices)
    shared = devices[0].platform == "cpu"
    if devices[0].platform == "tpu" and all(hasattr(device, "coords") for device in devices):
        at = [tuple(device.coords) for device in devices]
        sizes = [len(set(along)) for along in zip(*at, strict=True)]
        if prod(sizes) == len(set(at)) == len(devices):  # one core a chip, and no chip left out
            devices.sort(key=lambda device: tuple(device.coords))
            torus: list[tuple[Kind, int]] = [("torus", size) for size in sizes if size > 1]
            return Machine(tuple(devices), tuple(torus) or (("torus", 1),), _memory(devices), shared)
    processes = sorted({device.process_index for device in devices})
    devices.sort(key=lambda device: device.process_index)
    here, rest = divmod(len(devices), len(processes))
    if rest or any(sum(d.process_index == p for d in devices) != here for p in processes):
        return Machine(tuple(devices), (("network", len(devices)),), _memory(devices), shared)
    fabric: list[tuple[Kind, int]] = [("network", len(processes))] if len(processes) > 1 else []
    return Machine(tuple(devices), (*fabric, ("switch", here)), _memory(devices), shared)


def _memory(devices: Sequence[Any]) -> int:
    """Bytes of one device; CPU devices have equal parts of the machine's."""
    try:
        stats = devices[0].memory_stats()
    except (RuntimeError, NotImplementedError):
        stats = None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    local = [device for device in devices if device.process_index == jax.process_index()]
    return whole // len(local)
