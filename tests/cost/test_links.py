"""Mesh axes on physical links: which bandwidth each has, and which meshes a cluster refuses."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.cost.links import axis_bandwidths, check_mesh
from partita.errors import InputError
from partita.sharding import Mesh
from partita.specs import Cluster, PhysicalAxis, catalogue_chip, parse_cluster

NETWORK, SWITCH = 25e9, 300e9
NODES = """
[chip]
name = "gpu"
peak_flops = { bf16 = 312e12 }
hbm_bytes = 80_000_000_000
hbm_bandwidth = 2.039e12

[[fabric]]
kind = "network"
size = 2
link_bandwidth = 25e9

[[fabric]]
kind = "switch"
size = 8
link_bandwidth = 25e9
links = 12
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Cluster:
    """Two nodes of eight GPUs, from a file as a user writes it."""
    path = tmp_path / "nodes.toml"
    path.write_text(NODES)
    return parse_cluster(str(path))


@pytest.mark.parametrize("shape", [(4, 4, 4), (64,), (2, 8, 4), (4, 16), (2, 2, 2, 2, 2, 2)], ids=str)
def test_every_axis_of_a_torus_counts_all_the_links_of_a_chip(shape: tuple[int, ...]):
    """Pope et al. 2022: 270 GB/s of interconnect on TPU v4."""
    mesh = Mesh.of(shape)
    assert axis_bandwidths(mesh, parse_cluster("tpu-v4:4x4x4")) == dict.fromkeys(mesh.axes, 270e9)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 8), (NETWORK, SWITCH)),
        ((16,), (NETWORK,)),  # both levels: the slower
        ((4, 4), (NETWORK, SWITCH)),  # x: both nodes, and two groups in each
        ((8, 2), (NETWORK, SWITCH)),
        ((2, 2, 4), (NETWORK, SWITCH, SWITCH)),
        ((2, 4, 2), (NETWORK, SWITCH, SWITCH)),
    ],
    ids=str,
)
def test_an_axis_over_two_levels_has_the_slower(
    nodes: Cluster, shape: tuple[int, ...], expected: tuple[float, ...]
):
    assert tuple(axis_bandwidths(Mesh.of(shape), nodes)[axis] for axis in "xyz"[: len(shape)]) == expected


@pytest.mark.parametrize("shape", [(1, 2, 8), (2, 1, 8), (2, 8, 1)], ids=str)
def test_an_axis_of_one_chip_slows_nothing(nodes: Cluster, shape: tuple[int, ...]):
    """Wherever it stands: a collective over it and another axis has the other's bandwidth."""
    mesh = Mesh.of(shape)
    expected = {1: math.inf, 2: NETWORK, 8: SWITCH}
    assert axis_bandwidths(mesh, nodes) == {axis: expected[size] for axis, size in mesh.size.items()}


@pytest.mark.parametrize("shape", [(4, 4), (2, 2, 2), (32,), (1,)], ids=str)
def test_a_mesh_of_another_size_is_refused(nodes: Cluster, shape: tuple[int, ...]):
    mesh = Mesh.of(shape)
    for cluster in (nodes, parse_cluster("tpu-v4:4x4x4")):
        if mesh.chips == cluster.chips:
            check_mesh(mesh, cluster)
            continue
        for check in (check_mesh, axis_bandwidths):
            with pytest.raises(InputError) as caught:
                check(mesh, cluster)
            assert (caught.value.field, caught.value.value) == ("mesh", mesh)
            assert str(mesh) in str(caught.value)
            assert f"has {mesh.chips} chips" in caught.value.message
            assert caught.value.message.endswith(f"{cluster.name}, {cluster.chips}")
            assert "\n" not in str(caught.value)


def test_axes_that_cut_across_the_physical_ones_are_refused():
    cluster = levels(2, 3)
    assert axis_bandwidths(Mesh.of((2, 3)), cluster) == {"x": 1.0, "y": 2.0}
    with pytest.raises(InputError, match=r"^mesh: x=3,y=2: axis y does not fit .*\(2x3\).*fastest last$"):
        axis_bandwidths(Mesh.of((3, 2)), cluster)


def levels(*sizes: int) -> Cluster:
    """Switches inside switches; the bandwidth of a level is its number, slowest first from 1."""
    fabric = tuple(
        PhysicalAxis(kind="switch", size=size, link_bandwidth=float(level))
        for level, size in enumerate(sizes, start=1)
    )
    return Cluster(name="levels", chip=catalogue_chip("tpu-v4"), fabric=fabric)


@given(st.lists(st.lists(st.sampled_from((1, 2, 3)), max_size=3), min_size=1, max_size=4), st.data())
def test_the_slowest_level_that_chips_of_an_axis_lie_apart_on_limits_it(
    factors: list[list[int]], data: st.DataObject
):
    """Chips numbered in order: those of one axis, found by number, differ in which physical coordinates?"""
    shape, parts = [math.prod(level) for level in factors], [n for level in factors for n in level] or [1]
    joins = data.draw(st.lists(st.booleans(), min_size=len(parts) - 1, max_size=len(parts) - 1))
    sizes = [parts[0]]
    for part, joined in zip(parts[1:], joins, strict=True):
        sizes = [*sizes[:-1], sizes[-1] * part] if joined else [*sizes, part]
    mesh = Mesh.of(tuple(sizes))
    found = axis_bandwidths(mesh, levels(*shape))
    numbers = np.arange(mesh.chips).reshape(mesh.sizes)
    for place, axis in enumerate(mesh.axes):
        rows = np.moveaxis(numbers, place, -1).reshape(-1, mesh.sizes[place])
        apart = [np.ptp(coordinate, axis=-1).any() for coordinate in np.unravel_index(rows, shape)]
        crossed = [level for level, differs in enumerate(apart, start=1) if differs]
        assert found[axis] == min(crossed, default=math.inf)
