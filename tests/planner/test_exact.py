"""A pair of rows as one mesh: all chips, one role of each phase on every axis, one storage for both."""

import math
import random

import pytest
from tests.planner.drawn import a_case
from tests.sizes import some

from partita.planner.exact import RowAxis, join, row_axes
from partita.planner.space import cluster_topology, mesh_topology
from partita.planner.tables import Tables, price
from partita.sharding.layout import plan_storage
from partita.sharding.mesh import AXES, Mesh, parse_mesh
from partita.sharding.roles import AxisRoles
from partita.specs import parse_cluster

POD = cluster_topology(parse_cluster("tpu-v4:4x4x4"))


def stored_together(tables: Tables, draw: random.Random, most: int) -> list[tuple[int, int]]:
    """Rows of decode and prefill with the same storage."""
    by_storage: dict[tuple, list[int]] = {}
    for row, key in enumerate(map(tuple, tables.prefill.storage.tolist())):
        by_storage.setdefault(key, []).append(row)
    found = []
    for row in draw.sample(
        range(len(tables.decode.space.counts)), min(most, len(tables.decode.space.counts))
    ):
        others = by_storage.get(tuple(tables.decode.storage[row].tolist()), [])
        found += [(row, draw.choice(others))] if others else []
    return found


@pytest.mark.parametrize("seed", some(6, range(12)))
def test_two_rows_of_one_storage_are_one_mesh_with_both_phases_roles(seed: int):
    case = a_case(seed)
    tables, model, topology = price(case), case.model, case.topology
    rows = {"decode": tables.decode, "prefill": tables.prefill}
    compared = 0
    for row in stored_together(tables, random.Random(seed), 20):
        decode, prefill = (
            row_axes(table.space, i, 64, queries, 100)
            for (table, i, queries) in ((tables.decode, row[0], 1), (tables.prefill, row[1], 100))
        )
        joined = join(topology, decode, prefill, case.cluster.shape)
        if joined is None:
            continue
        compared += 1
        mesh, *roles = joined
        assert mesh.chips == case.cluster.chips
        assert len(mesh.axes) <= len(AXES)
        for given, table, place in zip(roles, rows.values(), row, strict=True):
            counts = dict.fromkeys(table.space.roles, 1)
            for (axis, weights), (_, attention) in zip(given.weights, given.attends, strict=True):
                if mesh.size[axis] > 1:
                    counts[AxisRoles(weights, attention)] *= mesh.size[axis]
            assert list(counts.values()) == table.space.counts[place].prod(axis=0).tolist()
        stored = [{axis: role[0].strip("r") for axis, role in given.weights} for given in roles]
        big = [axis for axis in mesh.axes if mesh.size[axis] > 1]
        assert [stored[0][axis] for axis in big] == [stored[1][axis] for axis in big]
        storage = plan_storage(model, mesh, *roles)
        e, f = (math.prod(mesh.size[axis] for axis in axes) for axes in (storage.e, storage.f))
        segments = len(topology.segments)
        assert e == tables.decode.storage[row[0]][:segments].prod()
        assert f == tables.decode.storage[row[0]][segments:].prod()
    assert compared > 0


def axis(roles: str, size: int, segment: int = 0) -> RowAxis:
    weights, attention = roles.split("/")
    return RowAxis(segment, AxisRoles(weights, attention), "", size)  # pyright: ignore[reportArgumentType]


def test_the_mesh_looks_like_the_machine_where_its_axes_can():
    decode = [axis("e/heads", 4), axis("f/batch", 16)]
    prefill = [axis("e/heads", 4), axis("f/heads", 16)]
    mesh, *roles = join(POD, decode, prefill, (4, 4, 4)) or pytest.fail("joins")
    assert mesh == Mesh.of((4, 4, 4))
    assert [str(r) for r in roles] == ["ws2d/x=heads,y=batch,z=batch", "ws2d/heads"]
    mesh, *roles = join(POD, decode, prefill, (8, 8)) or pytest.fail("joins")
    assert mesh == Mesh.of((4, 16))


def test_axes_are_cut_where_the_phases_differ_and_likes_meet():
    """Two of eight chips of F split the batch in decode, the others heads; in prefill the other way round."""
    topology = cluster_topology(parse_cluster("h100:1x8"))
    decode = [axis("f/heads", 4, segment=1), axis("f/batch", 2, segment=1)]
    prefill = [axis("f/heads", 2, segment=1), axis("f/batch", 4, segment=1)]
    mesh, mine, theirs = join(topology, decode, prefill) or pytest.fail("joins")
    assert sorted(mesh.sizes) == [2, 2, 2]
    pairs = [(a, b) for (_, a), (_, b) in zip(mine.attends, theirs.attends, strict=True)]
    assert sorted(pairs) == [("batch", "batch"), ("heads", "batch"), ("heads", "heads")]


def test_the_axes_of_a_given_mesh_stay_as_they_are():
    topology = mesh_topology(parse_mesh("x=2,y=4"), parse_cluster("h100:1x8"))
    decode = [axis("e/heads", 2), axis("f/batch", 4, segment=1)]
    prefill = [axis("e-gathered/heads", 2), axis("f/context", 4, segment=1)]
    mesh, mine, theirs = join(topology, decode, prefill, (1, 8), parse_mesh("x=2,y=4")) or pytest.fail(
        "joins"
    )
    assert mesh == parse_mesh("x=2,y=4")
    assert dict(mine.weights) == {"x": "e", "y": "f"}
    assert dict(theirs.weights) == {"x": "e-gathered", "y": "f"}
    assert dict(theirs.attends) == {"x": "heads", "y": "context"}


def test_one_chip_is_a_mesh_of_one_axis():
    topology = cluster_topology(parse_cluster("h100:1x1"))
    mesh, mine, theirs = join(topology, [], [], (1, 1)) or pytest.fail("joins")
    assert mesh == Mesh.of((1,))
    assert mine == theirs
