"""Rows as axes: their sizes multiply to the chips, they split no more than there is, heads as a mesh does."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.planner.batched_layout import Axis, AxisSet, batched_axes, layout, links, share_heads
from partita.planner.space import Segment, Space, Topology, axis_roles, cluster_topology, mesh_topology, rows
from partita.sharding.mesh import Mesh, parse_mesh
from partita.sharding.padding import assign_heads, ceil_to
from partita.sharding.roles import AxisRoles, splits_heads
from partita.specs import Model, parse_cluster

TWO = cluster_topology(parse_cluster("h100:2x4"))
NAMES = {"decode": 1, "prefill": 6}
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


def space(model: Model, topology: Topology, roles: Sequence[AxisRoles], counts: np.ndarray) -> Space:
    return Space(model, topology, "prefill", tuple(roles), counts)


def spread_out(
    topology: Topology, roles, counts, batches: list[int], queries: int, context: int = 100, enough=False
) -> AxisSet:
    batch = np.array([batches], dtype=float)
    return batched_axes(space(a_model(2, 4), topology, roles, counts), batch, queries, context, enough=enough)


def product(axes: list[Axis], shape: tuple[int, int]) -> np.ndarray:
    found = np.ones(shape)
    for axis in axes:
        found = found * axis.sizes
    return found


@given(
    heads=st.sampled_from(HEADS),
    queries=st.sampled_from([1, 2, 6, 100]),
    batches=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    enough=st.booleans(),
)
def test_the_axes_of_a_role_have_all_its_chips(heads, queries: int, batches: list[int], enough: bool):
    model = a_model(*heads)
    roles = axis_roles(model, TWO, "prefill")
    counts = rows(TWO, len(roles), 2)
    batch = np.array([batches], dtype=float)
    found = batched_axes(space(model, TWO, roles, counts), batch, queries, queries, enough=enough)
    for s in range(2):
        for c, role in enumerate(roles):
            mine = [a for a in found.axes if (a.segment, a.roles) == (s, role)]
            assert (product(mine, found.legal.shape) == counts[:, s, c][:, None]).all()
    assert len({axis.name for axis in found.axes}) == len(found.axes)


@given(queries=st.sampled_from([1, 2, 6]), batches=st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_tokens_are_split_into_no_more_parts_than_there_are(queries: int, batches: list[int]):
    roles = axis_roles(a_model(2, 4), TWO, "prefill")
    counts = rows(TWO, len(roles), 3)
    found = spread_out(TWO, roles, counts, batches, queries, queries)
    shape = found.legal.shape
    basis = {what: product([a for a in found.axes if a.tokens == what], shape) for what in ("b", "l")}
    assert (basis["b"] <= batches).all()
    assert (basis["l"] <= queries).all()
    over = [c for c, role in enumerate(roles) if role.splits_tokens and role.stored]
    gathered = counts[:, :, over].prod(axis=(1, 2))
    legal = found.legal.any(axis=1)
    assert (gathered[legal] <= max(batches) * queries).all()
    for what, room in (("b", np.array([batches])), ("l", queries)):
        taken = product([a for a in found.axes if a.attends == what], shape)
        assert (taken <= room)[found.legal].all()


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_where_there_is_a_sequence_for_every_chip_the_shortcut_is_the_same(phase):
    """Then no split depends on the batch, and query tokens stay whole."""
    roles = axis_roles(a_model(2, 4), TWO, phase)
    counts = rows(TWO, len(roles), 3)
    short, long = (
        spread_out(TWO, roles, counts, [8, 64], NAMES[phase], 100, enough=enough) for enough in (True, False)
    )
    assert (short.legal == long.legal).all()
    assert len(short.axes) == len(long.axes)
    for one, other in zip(short.axes, long.axes, strict=True):
        assert (one.segment, one.roles, one.splits, one.attends) == (
            other.segment,
            other.roles,
            other.splits,
            other.attends,
        )
        assert (one.sizes == other.sizes).all()
    fields = [str(layout(each)) for each in (short, long)]
    assert fields[0] == fields[1]


def one_row(role: AxisRoles, size: int, batch: int, queries: int, context: int = 100) -> AxisSet:
    topology = cluster_topology(parse_cluster(f"h100:1x{size}"))
    counts = np.array([[[1.0], [float(size)]]])
    return spread_out(topology, [role], counts, [batch], queries, context)


def test_gathered_axes_need_a_token_for_every_chip_and_replicas_stand_idle():
    assert one_row(AxisRoles("f-gathered", "heads"), 8, 2, 4).legal.all()
    assert not one_row(AxisRoles("f-gathered", "heads"), 8, 2, 2).legal.any()
    found = one_row(AxisRoles("replica", "heads"), 8, 2, 2)
    assert found.legal.all()
    for tokens in ("b", "l", ""):
        assert product([a for a in found.axes if a.tokens == tokens], (1, 1)).item() == 2


def test_attention_needs_a_sequence_or_a_position_for_every_chip():
    assert one_row(AxisRoles("f", "batch"), 8, 8, 1).legal.all()
    assert not one_row(AxisRoles("f", "batch"), 8, 7, 1).legal.any()
    assert one_row(AxisRoles("f", "context"), 8, 1, 1, context=8).legal.all()
    assert not one_row(AxisRoles("f", "context"), 8, 1, 1, context=7).legal.any()
    assert one_row(AxisRoles("f", "context"), 8, 1, 8).legal.all()
    assert not one_row(AxisRoles("f", "context"), 8, 1, 7).legal.any()
    assert one_row(AxisRoles("f", "heads"), 8, 1, 1).legal.all()


def test_sequences_that_tokens_leave_are_taken_by_attention():
    """Axes of attention over heads hold two sequences; those over the batch trade query tokens for them."""
    topology = cluster_topology(parse_cluster("h100:1x8"))
    roles = [AxisRoles("e-gathered", "heads"), AxisRoles("e-gathered", "batch")]
    found = spread_out(topology, roles, np.array([[[1.0, 1.0], [2.0, 2.0]]]), [2], 4, 4)
    split = {(a.roles.attention, a.tokens, a.attends) for a in found.axes}
    assert {(attention, tokens) for attention, tokens, _ in split} == {("heads", "b"), ("batch", "l")}
    assert ("batch", "l", "b") in split


def test_the_layout_names_every_axis_where_it_is_used():
    roles = axis_roles(a_model(2, 4), TWO, "decode")
    counts = rows(TWO, len(roles), 3)
    found = spread_out(TWO, roles, counts, [3, 8], 1)
    used = layout(found)
    axes = {axis.name: axis for axis in found.axes}
    assert set(used.storage.e + used.storage.f) == {n for n, a in axes.items() if a.roles.stored}
    assert set(used.e + used.f) == {n for n, a in axes.items() if not a.roles.splits_tokens}
    assert set(used.attn_b) == {n for n, a in axes.items() if a.attends == "b"}
    assert set(used.attn_s) == {n for n, a in axes.items() if a.attends == "l"}
    assert set(used.attn_k + used.attn_g) == {n for n, a in axes.items() if a.attends in ("k", "g")}
    assert set(used.tokens_b) == {n for n, a in axes.items() if a.tokens == "b"}
    assert used.queries(cached=True) == ""
    assert set(used.attn_l) == set(used.attn_s)


def test_axes_lie_on_the_levels_of_their_segment():
    roles = axis_roles(a_model(2, 4), TWO, "decode")
    found = spread_out(TWO, roles, rows(TWO, len(roles), 3), [8], 1)
    for axis in found.axes:
        parts = links(TWO, found).parts[axis.name]
        assert [np.max(part) > 1 for part in parts] == [axis.segment == 0, axis.segment == 1]
    topology = mesh_topology(parse_mesh("x=4,y=2"), parse_cluster("h100:2x4"))
    found = spread_out(topology, roles, rows(topology, len(roles), 3), [8], 1)
    for axis in found.axes:
        parts = links(topology, found).parts[axis.name]
        assert [np.max(part) for part in parts] == ([2, 2] if axis.segment == 0 else [1, 2])
        assert (np.prod([np.broadcast_to(p, axis.sizes.shape) for p in parts], axis=0) == axis.sizes).all()


# -- heads ------------------------------------------------------------------------------------------


def padded(model: Model, k: int, g: int) -> tuple[int, int, int]:
    """Heads in all, K heads a chip, K heads."""
    over_k = ceil_to(model.kv_heads, k)
    return over_k * ceil_to(model.group, g), over_k // k, over_k


@given(heads=st.sampled_from(HEADS), size=st.sampled_from([2, 3, 4, 5, 6, 7, 8, 12]), whole=st.booleans())
def test_no_other_cut_of_the_same_chips_pads_less(heads: tuple[int, int], size: int, whole: bool):
    model = a_model(*heads)
    topology = Topology((Segment((size,), whole),), ())
    roles = [
        AxisRoles("f", "heads"),
        AxisRoles("e", "heads"),
        AxisRoles("f", "batch"),
        AxisRoles("e", "batch"),
    ]
    counts = rows(topology, len(roles), 3)
    parts = share_heads(space(model, topology, roles, counts))
    of = {
        dim: np.array([p.size for p in parts if p.heads == dim] or [np.ones(len(counts))]).prod(axis=0)
        for dim in ("k", "g")
    }
    for row, k, g in zip(counts[:, 0], of["k"].astype(int), of["g"].astype(int), strict=True):
        splits = [int(n) for n, role in zip(row, roles, strict=True) if splits_heads(role)]
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
    parts = share_heads(space(model, topology, [AxisRoles("f", "heads")], np.array([[[float(size)]]])))
    assert {p.heads: p.size[0] for p in parts} == {"k": k, "g": size / k}


def test_k_goes_where_the_cache_is_split_and_last_where_the_batch_is():
    """One of two groups of two chips can have K: one whose attention splits heads, and F's before others."""
    model = a_model(2, 4)
    topology = Topology((Segment((4,), False),), ())
    order = [
        AxisRoles("f", "heads"),
        AxisRoles("e", "heads"),
        AxisRoles("f", "context"),
        AxisRoles("f", "batch"),
    ]
    for i, j in itertools.combinations(range(4), 2):
        roles = [order[j], order[i]]
        parts = share_heads(space(model, topology, roles, np.array([[[2.0, 2.0]]])))
        over_k = {p.roles for p in parts if p.heads == "k" and p.size[0] == 2}
        assert over_k == {order[i]}


def test_chips_that_split_no_heads_are_left_whole():
    model = a_model(2, 4)
    topology = Topology((Segment((8,), False), Segment((1,), False)), ())
    roles = axis_roles(model, topology, "decode")
    counts = rows(topology, len(roles), 3)
    shares = share_heads(space(model, topology, roles, counts))
    for part in shares:
        assert part.heads == "" or splits_heads(part.roles)
        assert part.segment == 0  # nothing plays a role on one chip
    assert sum(p.heads == "" for p in shares) == sum(not splits_heads(role) for role in roles)
