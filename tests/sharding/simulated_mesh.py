"""A mesh of devices in plain NumPy: carries out each kind of collective literally, device by device.

Knows what a collective means to the arrays it is given, not which sharding they should end up in.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction

import numpy as np

from partita.sharding import ReshardStep, Sharding

Device = tuple[int, ...]
Held = dict[Device, np.ndarray]
"""What every device holds, by its coordinates in the order of the mesh's axes."""


class SimulatedMesh:
    """Devices at every coordinate of axes with these sizes. Axes of a group count outermost first."""

    def __init__(self, sizes: Mapping[str, int]):
        self.axes, self.sizes = "".join(sizes), dict(sizes)
        self.devices = list(itertools.product(*(range(size) for size in sizes.values())))

    def shards(self, axes: str) -> int:
        """How many parts a group of axes makes."""
        return math.prod(self.sizes[axis] for axis in axes)

    def place(self, terms: np.ndarray, sharding: Sharding) -> Held:
        """Every device's part of a tensor [*partial axes, *dims], the tensor being the sum of its terms."""
        held = {}
        for device in self.devices:
            local = terms[tuple(device[self.axes.index(axis)] for axis in sharding.partial)]
            for position, axes in enumerate(sharding.axes):
                local = np.split(local, self.shards(axes), axis=position)[self._index(device, axes)]
            held[device] = local
        return held

    def run(self, step: ReshardStep, held: Held) -> Held:
        """What every device holds after the step."""
        at, to = step.before.dims.find(step.dim), step.before.dims.find(step.to)
        shards, after = self.shards(step.axes), {}
        for group in self._groups(step.axes):
            arrays = [held[device] for device in group]
            for index, device in enumerate(group):
                if step.kind == "slice":
                    after[device] = np.split(held[device], shards, axis=at)[index]
                elif step.kind == "reduce-scatter":
                    after[device] = np.split(np.sum(arrays, axis=0), shards, axis=at)[index]
                elif step.kind == "all-reduce":
                    after[device] = np.sum(arrays, axis=0)
                elif step.kind == "all-to-all":
                    received = [np.split(array, shards, axis=to)[index] for array in arrays]
                    after[device] = np.concatenate(received, axis=at)
                elif step.kind == "all-gather":
                    after[device] = np.concatenate(arrays, axis=at)
                else:  # the part that is this device's in the new order lies where the old order put it
                    after[device] = arrays[self._index(device, step.order)]
        return after

    def sent(self, step: ReshardStep, held: Held) -> Fraction | int:
        """Elements the busiest device sends, collectives other than a permutation going round a ring.

        In an all-gather every device passes on all parts but one; a reduce-scatter is the same in reverse;
        an all-reduce is both, of parts that need not be whole; in an all-to-all a device keeps one part.
        """
        local, others = held[self.devices[0]].size, self.shards(step.axes) - 1
        if step.kind == "slice":
            return 0
        if step.kind == "collective-permute":
            moves = [
                self._index(device, step.order) != self._index(device, step.axes) for device in self.devices
            ]
            return local if any(moves) else 0
        if step.kind == "all-gather":
            return others * local
        return Fraction(others * local, others + 1) * (2 if step.kind == "all-reduce" else 1)

    def _groups(self, axes: str) -> Iterator[list[Device]]:
        """Devices that differ in nothing but `axes`, in the order of their index over them."""
        rest = "".join(axis for axis in self.axes if axis not in axes)
        groups: dict[Device, list[Device]] = {}
        for device in self.devices:
            groups.setdefault(tuple(device[self.axes.index(axis)] for axis in rest), []).append(device)
        for group in groups.values():
            yield sorted(group, key=lambda device: self._index(device, axes))

    def _index(self, device: Device, axes: str) -> int:
        index = 0
        for axis in axes:
            index = index * self.sizes[axis] + device[self.axes.index(axis)]
        return index
