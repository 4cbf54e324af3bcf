"""Mesh axes on physical links: which bandwidth each has, and which meshes a cluster refuses."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.cost.links import Level, Links, check_mesh, mesh_links
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
    found = mesh_links(mesh, parse_cluster("tpu-v4:4x4x4"))
    assert found.levels == (Level(270e9, kind="torus", axes=3),)
    assert found.parts == {axis: (size,) for axis, size in mesh.size.items()}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 8), ((2, 1), (1, 8))),
        ((16,), ((2, 8),)),
        ((4, 4), ((2, 2), (1, 4))),  # x: both nodes, and two groups in each
        ((8, 2), ((2, 4), (1, 2))),
        ((2, 2, 4), ((2, 1), (1, 2), (1, 4))),
        ((2, 4, 2), ((2, 1), (1, 4), (1, 2))),
        ((1, 2, 8), ((1, 1), (2, 1), (1, 8))),
        ((2, 8, 1), ((2, 1), (1, 8), (1, 1))),
    ],
    ids=str,
)
def test_chips_of_an_axis_on_every_level(
    nodes: Cluster, shape: tuple[int, ...], expected: tuple[tuple[int, int], ...]
):
    found = mesh_links(Mesh.of(shape), nodes)
    assert found.levels == (Level(NETWORK, kind="network"), Level(SWITCH, kind="switch"))
    assert tuple(found.parts[axis] for axis in "xyz"[: len(shape)]) == expected


TWO = Links((Level(1.0), Level(10.0)), {"x": (2, 1), "y": (1, 8), "z": (2, 8), "w": (1, 1)})
"""Two nodes of eight chips, the links inside ten times as fast; z goes over both."""


@pytest.mark.parametrize(
    ("kind", "axes", "sent", "seconds"),
    [
        ("all-gather", "x", 8, 8),  # all over the slow level
        ("all-gather", "y", 8, 0.8),
        ("all-gather", "w", 0, 0),
        # of 15 parts 1 crosses between the nodes, at a tenth of the pace of the other 14
        ("all-gather", "z", 15, 1.4),
        ("reduce-scatter", "xy", 15, 1.4),
        ("all-reduce", "z", 30, 2.8),
        # nothing to combine: 8 of 15 chips are in the other node
        ("all-to-all", "z", 15, 8),
        ("all-to-all", "yx", 15, 8),
        ("collective-permute", "z", 5, 5),
        ("collective-permute", "y", 5, 0.5),
    ],
)
def test_a_collective_takes_as_long_as_its_slowest_level(kind: str, axes: str, sent: float, seconds: float):
    assert TWO.seconds(kind, axes, sent) == pytest.approx(seconds)


def test_a_switch_that_sums_takes_the_bytes_of_an_all_reduce_once():
    """Eight chips with D bytes each: 2 D 7/8 by reduce-scatter and all-gather, D where the switch sums."""
    summing = Links((Level(1.0, in_network_reduction=True),), {"x": (8,), "y": (2,)})
    assert summing.seconds("all-reduce", "x", 2 * 64 * 7 / 8) == pytest.approx(64)
    assert summing.seconds("all-reduce", "y", 64) == pytest.approx(64)
    assert summing.seconds("all-gather", "x", 56) == pytest.approx(56)


@given(
    st.sampled_from(["all-gather", "reduce-scatter", "all-reduce", "all-to-all"]),
    st.integers(1, 8),
    st.integers(1, 8),
    st.floats(1, 100),
)
def test_two_levels_of_one_speed_are_no_slower_than_one(kind: str, nodes: int, chips: int, bandwidth: float):
    apart = Links((Level(bandwidth), Level(bandwidth)), {"x": (nodes, chips)})
    whole = Links((Level(bandwidth),), {"x": (nodes * chips,)})
    sent = 1e6 * (nodes * chips > 1)
    assert apart.seconds(kind, "x", sent) <= whole.seconds(kind, "x", sent) * (1 + 1e-12)
    slower = Links((Level(bandwidth / 3), Level(bandwidth)), {"x": (nodes, chips)})
    assert slower.seconds(kind, "x", sent) >= apart.seconds(kind, "x", sent) * (1 - 1e-12)


def test_many_meshes_are_priced_in_one_pass():
    sizes = np.array([[1.0], [2.0], [4.0]])
    found = Links((Level(1.0), Level(10.0)), {"x": (sizes, 1), "y": (1, 8 / sizes)})
    sent = np.array([[8.0, 16.0]])
    together = np.asarray(found.seconds("all-gather", "xy", sent))
    for i, size in enumerate((1, 2, 4)):
        alone = Links((Level(1.0), Level(10.0)), {"x": (size, 1), "y": (1, 8 // size)})
        assert together[i].tolist() == pytest.approx(
            [alone.seconds("all-gather", "xy", n) for n in (8.0, 16.0)]
        )


@pytest.mark.parametrize("shape", [(4, 4), (2, 2, 2), (32,), (1,)], ids=str)
def test_a_mesh_of_another_size_is_refused(nodes: Cluster, shape: tuple[int, ...]):
    mesh = Mesh.of(shape)
    for cluster in (nodes, parse_cluster("tpu-v4:4x4x4")):
        if mesh.chips == cluster.chips:
            check_mesh(mesh, cluster)
            continue
        for check in (check_mesh, mesh_links):
            with pytest.raises(InputError) as caught:
                check(mesh, cluster)
            assert (caught.value.field, caught.value.value) == ("mesh", mesh)
            assert str(mesh) in str(caught.value)
            assert f"has {mesh.chips} chips" in caught.value.message
            assert caught.value.message.endswith(f"{cluster.name}, {cluster.chips}")
            assert "\n" not in str(caught.value)


def test_axes_that_cut_across_the_physical_ones_are_refused():
    cluster = levels(2, 3)
    assert mesh_links(Mesh.of((2, 3)), cluster).parts == {"x": (2, 1), "y": (1, 3)}
    with pytest.raises(InputError, match=r"^mesh: x=3,y=2: axis y does not fit .*\(2x3\).*fastest last$"):
        mesh_links(Mesh.of((3, 2)), cluster)


def levels(*sizes: int) -> Cluster:
    """Switches inside switches; the bandwidth of a level is its number, slowest first from 1."""
    fabric = tuple(
        PhysicalAxis(kind="switch", size=size, link_bandwidth=float(level))
        for level, size in enumerate(sizes, start=1)
    )
    return Cluster(name="levels", chip=catalogue_chip("tpu-v4"), fabric=fabric)


@given(st.lists(st.lists(st.sampled_from((1, 2, 3)), max_size=3), min_size=1, max_size=4), st.data())
def test_the_levels_that_chips_of_an_axis_lie_apart_on_are_those_it_counts(
    factors: list[list[int]], data: st.DataObject
):
    """Chips numbered in order: those of one axis, found by number, differ in which physical coordinates?"""
    shape, parts = [math.prod(level) for level in factors], [n for level in factors for n in level] or [1]
    joins = data.draw(st.lists(st.booleans(), min_size=len(parts) - 1, max_size=len(parts) - 1))
    sizes = [parts[0]]
    for part, joined in zip(parts[1:], joins, strict=True):
        sizes = [*sizes[:-1], sizes[-1] * part] if joined else [*sizes, part]
    mesh = Mesh.of(tuple(sizes))
    found = mesh_links(mesh, levels(*shape))
    numbers = np.arange(mesh.chips).reshape(mesh.sizes)
    for place, axis in enumerate(mesh.axes):
        rows = np.moveaxis(numbers, place, -1).reshape(-1, mesh.sizes[place])
        apart = [np.ptp(coordinate, axis=-1).any() for coordinate in np.unravel_index(rows, shape)]
        assert [part > 1 for part in found.parts[axis]] == apart
        assert math.prod(found.parts[axis]) == mesh.sizes[place]


@pytest.mark.parametrize(
    ("shape", "axes", "starts"),
    [((4, 4, 4), "x", 1), ((4, 4, 4), "yz", 2), ((4, 4, 4), "xyz", 3), ((64,), "x", 3), ((2, 32), "x", 1)],
    ids=str,
)
def test_a_collective_on_a_torus_starts_once_for_every_physical_axis(shape, axes: str, starts: int):
    links = mesh_links(Mesh.of(shape), parse_cluster("tpu-v4:4x4x4"))
    assert links.starts(0, axes) == pytest.approx(starts)
    chips = links.span(axes)[0]
    assert links.hops(0, axes) == pytest.approx({1: chips - 1, 2: 6, 3: 9}[starts])  # of rings of four


def test_axes_of_one_chip_are_no_axes_of_a_torus():
    links = mesh_links(Mesh.of((16,)), parse_cluster("tpu-v4:1x4x4"))
    assert links.starts(0, "x") == pytest.approx(2)


def test_behind_a_switch_every_collective_starts_once():
    links = mesh_links(Mesh.of((2, 4)), parse_cluster("h100:1x8"))
    assert links.starts(len(links.levels) - 1, "xy") == 1
