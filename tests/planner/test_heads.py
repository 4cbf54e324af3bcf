"""Heads are cut for all rows at once as they are for one mesh."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.planner.heads import cut_heads
from partita.planner.space import AxisRoles, Segment, Topology, axis_roles, rows
from partita.sharding.mesh import Mesh
from partita.sharding.padding import assign_heads, ceil_to
from partita.specs import Model

HEADS = [(1, 8), (2, 4), (3, 3), (3, 1), (4, 1), (8, 1), (1, 5), (6, 2), (9, 1), (5, 3)]


def a_model(kv: int, group: int) -> Model:
    return Model(
        name="drawn",
        layers=1,
        d_model=64,
        d_ff=64,
        heads=kv * group,
        kv_heads=kv,
        head_dim=16,
        vocabulary=64,
        block="serial",
        feed_forward="gelu",
    )


def padded(model: Model, k: int, g: int) -> tuple[int, int, int]:
    """Heads in all, K heads a chip, K heads."""
    over_k = ceil_to(model.kv_heads, k)
    return over_k * ceil_to(model.group, g), over_k // k, over_k


@given(heads=st.sampled_from(HEADS), size=st.sampled_from([2, 3, 4, 5, 6, 7, 8, 12]), whole=st.booleans())
def test_no_other_cut_of_the_same_chips_pads_less(heads: tuple[int, int], size: int, whole: bool):
    model = a_model(*heads)
    topology = Topology((Segment((size,), whole),), ())
    kinds = [
        AxisRoles("f", "heads"),
        AxisRoles("e", "heads"),
        AxisRoles("f", "batch"),
        AxisRoles("e", "batch"),
    ]
    counts = rows(topology, len(kinds), 3)
    parts = cut_heads(model, topology, kinds, counts)
    of = {
        dim: np.array([p.size for p in parts if p.heads == dim] or [np.ones(len(counts))]).prod(axis=0)
        for dim in ("k", "g")
    }
    for row, k, g in zip(counts[:, 0], of["k"].astype(int), of["g"].astype(int), strict=True):
        splits = [int(n) for n, kind in zip(row, kinds, strict=True) if kind.splits_heads]
        assert k * g == math.prod(splits)
        found = [(1, n) for n in splits] if whole else [divisors(n) for n in splits]
        ways = {math.prod(way) for way in itertools.product(*found)}
        assert padded(model, k, g) == min(padded(model, way, k * g // way) for way in ways)


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


@pytest.mark.parametrize(("kv", "group"), HEADS)
@pytest.mark.parametrize("size", [2, 3, 6, 8, 12])
def test_a_mesh_of_prime_axes_is_padded_alike(kv: int, group: int, size: int):
    """Cut as finely as can be, a mesh can do all that rows can."""
    model = a_model(kv, group)
    primes = []
    while math.prod(primes) < size:
        primes.append(next(p for p in (2, 3) if (size // math.prod(primes)) % p == 0))
    mesh = Mesh.of(tuple(primes))
    k = math.prod(mesh.size[axis] for axis in assign_heads(model, mesh, list(mesh.axes)))
    topology = Topology((Segment((size,), False),), ())
    parts = cut_heads(model, topology, [AxisRoles("f", "heads")], np.array([[[float(size)]]]))
    assert {p.heads: p.size[0] for p in parts} == {"k": k, "g": size / k}


def test_k_goes_where_the_cache_is_split_and_last_where_the_batch_is():
    """Of two groups of two chips one can have K: that whose attention splits heads, and of such that of F."""
    model = a_model(2, 4)
    topology = Topology((Segment((4,), False),), ())
    order = [
        AxisRoles("f", "heads"),
        AxisRoles("e", "heads"),
        AxisRoles("f", "context"),
        AxisRoles("f", "batch"),
    ]
    for i, j in itertools.combinations(range(4), 2):
        kinds = [order[j], order[i]]
        parts = cut_heads(model, topology, kinds, np.array([[[2.0, 2.0]]]))
        over_k = {p.kind for p in parts if p.heads == "k" and p.size[0] == 2}
        assert over_k == {order[i]}


def test_chips_that_split_no_heads_are_left_whole():
    model = a_model(2, 4)
    topology = Topology((Segment((8,), False), Segment((1,), False)), ())
    kinds = axis_roles(model, topology, "decode")
    counts = rows(topology, len(kinds), 3)
    for part in cut_heads(model, topology, kinds, counts):
        assert part.heads == "" or part.kind.splits_heads
        assert part.segment == 0  # nothing plays a role on one chip
    assert sum(p.heads == "" for p in cut_heads(model, topology, kinds, counts)) == sum(
        not kind.splits_heads for kind in kinds
    )
