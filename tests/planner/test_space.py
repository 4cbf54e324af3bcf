"""The rows of the space: all of them, each once, and none that is no layout."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planner.drawn import TORUS

from partita.errors import InputError
from partita.planner.space import (
    Segment,
    Topology,
    axis_roles,
    cluster_topology,
    count_rows,
    mesh_topology,
    rows,
)
from partita.sharding.mesh import Mesh, parse_mesh
from partita.specs import catalogue_model, parse_cluster

PALM = catalogue_model("palm-540b")


def topology(*sizes: int, whole: bool = False) -> Topology:
    return Topology(tuple(Segment((size,), whole) for size in sizes), ())


TOPOLOGIES = st.builds(
    lambda sizes, whole: topology(*sizes, whole=whole),
    st.lists(st.sampled_from([1, 2, 3, 4, 6, 7, 8, 12]), min_size=1, max_size=3),
    st.booleans(),
)


@given(topology=TOPOLOGIES, roles=st.integers(1, 5), most=st.integers(1, 4))
def test_there_are_as_many_rows_as_counted_all_distinct_on_all_chips(
    topology: Topology, roles: int, most: int
):
    found = rows(topology, roles, most)
    assert count_rows(topology, roles, most) == len(found)
    assert found.shape[1:] == (len(topology.segments), roles)
    assert len(np.unique(found, axis=0)) == len(found)
    assert (found.prod(axis=2) == [segment.size for segment in topology.segments]).all()
    assert ((found > 1).sum(axis=(1, 2)) <= most).all()


@given(topology=TOPOLOGIES, roles=st.integers(1, 4), most=st.integers(1, 4))
def test_the_rows_are_those_found_by_trying_all_numbers(topology: Topology, roles: int, most: int):
    """For each segment, every tuple of divisors whose product is its size."""

    def ways(segment: Segment) -> list[tuple[int, ...]]:
        parts = itertools.product(segment.divisors, repeat=roles)
        return [part for part in parts if math.prod(part) == segment.size]

    wanted = {
        row
        for row in itertools.product(*map(ways, topology.segments))
        if sum(n > 1 for part in row for n in part) <= most
    }
    assert {tuple(map(tuple, row)) for row in rows(topology, roles, most).astype(int).tolist()} == wanted


def test_eight_chips_in_two_roles_are_shared_in_four_ways():
    found = rows(topology(8), 2, 3)
    assert sorted(map(tuple, found[:, 0].tolist())) == [(1, 8), (2, 4), (4, 2), (8, 1)]
    assert rows(topology(8, whole=True), 2, 3)[:, 0].tolist() == [[8, 1], [1, 8]]


@pytest.mark.parametrize("shape", TORUS)
def test_a_torus_is_one_segment_however_it_is_shaped(shape: tuple[int, ...]):
    """A collective over some of its axes can use all its links, so that only numbers of chips matter."""
    name = "tpu-v4:" + "x".join(map(str, (*shape, 1, 1)[:3]))
    found = cluster_topology(parse_cluster(name))
    assert [segment.size for segment in found.segments] == [found.chips] == [math.prod(shape)]


def test_nodes_are_a_segment_of_their_own_slowest_first():
    found = cluster_topology(parse_cluster("h100:2x8"))
    assert [segment.parts for segment in found.segments] == [(2, 1), (1, 8)]
    assert [segment.divisors for segment in found.segments] == [(1, 2), (1, 2, 4, 8)]
    assert found.levels[0].bandwidth < found.levels[1].bandwidth


def test_the_axes_of_a_given_mesh_are_segments_that_are_not_divided():
    found = mesh_topology(parse_mesh("x=4,y=4"), parse_cluster("h100:2x8"))
    assert [(segment.parts, segment.whole) for segment in found.segments] == [((2, 2), True), ((1, 4), True)]
    assert len(rows(found, 5, 9)) == 25
    assert len(rows(mesh_topology(Mesh.of((1, 1)), parse_cluster("h100:1x1")), 5, 9)) == 1


def test_a_mesh_of_another_size_is_refused():
    with pytest.raises(InputError, match="has 8 chips"):
        mesh_topology(parse_mesh("x=8"), parse_cluster("h100:2x8"))


# -- roles -------------------------------------------------------------------------------------------------


def test_attention_may_split_nothing_only_where_heads_do_not_divide():
    assert PALM.heads == 48
    for cluster, nothing in (("tpu-v4:4x4x4", True), ("h100:1x7", True), ("h100:2x8", False)):
        roles = axis_roles(PALM, cluster_topology(parse_cluster(cluster)), "decode")
        attention = {role.attention for role in roles}
        assert attention == {"heads", "batch", "context"} | ({"none"} if nothing else set())


def test_every_role_of_weights_meets_every_role_of_attention():
    eight = cluster_topology(parse_cluster("h100:1x8"))
    assert len(set(axis_roles(PALM, eight, "prefill"))) == 5 * 3
    without = axis_roles(PALM, eight, "decode", gathered=False)
    assert {k.weights for k in without} == {"e", "f", "replica"}
    assert set(without) < set(axis_roles(PALM, eight, "decode"))
