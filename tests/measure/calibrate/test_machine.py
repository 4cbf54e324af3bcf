"""What the machine is: from devices of several kinds, none of which need be here."""

import os
from typing import Any, cast

import jax
import numpy as np
import pytest
from tests.measure.calibrate.made import device, gpus

from partita.measure.calibrate.machine import machine


def torus(*coords: tuple[int, ...]):
    return [device("tpu", i, 0, at, memory={"bytes_limit": 16_000_000_000}) for i, at in enumerate(coords)]


def test_cpu_devices_share_one_processor_and_its_memory():
    found = machine(jax.devices())
    assert found.fabric == (("switch", 8),)
    assert (found.chips, found.shape, found.platform, found.shared) == (8, (8,), "cpu", True)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert found.memory_bytes == whole // 8


def test_one_gpu_has_no_neighbours():
    found = machine(gpus(1, 1))
    assert found.fabric == (("switch", 1),)
    assert (found.memory_bytes, found.shared) == (30_000_000_000, False)


def test_gpus_of_one_process_share_a_switch():
    assert machine(gpus(1, 8)).fabric == (("switch", 8),)


def test_processes_are_joined_by_a_network():
    mixed = gpus(2, 4)[::-1]
    found = machine(mixed)
    assert found.fabric == (("network", 2), ("switch", 4))
    assert [each.process_index for each in found.devices] == [0] * 4 + [1] * 4


def test_processes_of_unequal_size_are_one_network():
    found = machine(gpus(2, 4)[:7])
    assert found.fabric == (("network", 7),)


@pytest.mark.parametrize(
    ("sizes", "fabric"),
    [
        ((2, 2, 1), (("torus", 2), ("torus", 2))),
        ((4, 4, 1), (("torus", 4), ("torus", 4))),
        ((2, 4, 2), (("torus", 2), ("torus", 4), ("torus", 2))),
        ((1, 1, 1), (("torus", 1),)),
    ],
)
def test_tpus_lie_on_a_torus_in_the_order_of_their_places(sizes, fabric):
    places = [tuple(map(int, at)) for at in np.ndindex(sizes)]
    found = machine(torus(*places[::-1]))
    assert found.fabric == fabric
    assert [each.coords for each in found.devices] == places
    assert found.memory_bytes == 16_000_000_000


def test_two_cores_a_chip_and_a_torus_with_holes_count_as_a_switch():
    assert machine(torus((0, 0, 0), (0, 0, 0), (1, 0, 0), (1, 0, 0))).fabric == (("switch", 4),)
    assert machine(torus((0, 0, 0), (0, 1, 0), (1, 0, 0))).fabric == (("switch", 3),)


def test_groups_are_neighbours_along_their_axis(monkeypatch):
    monkeypatch.setattr("partita.measure.calibrate.machine.Mesh", lambda grid, names, axis_types: grid)
    here = machine(gpus(2, 4))

    def groups(axis: int, chips: int) -> list[list[int]]:
        return [[each.id for each in row] for row in cast(Any, here.grid(axis, chips))]

    assert groups(0, 2) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert groups(1, 4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups(1, 2) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups(1, 1) == [[i] for i in range(8)]
