"""Rows as axes: their sizes multiply to the chips, and they split no more than there is to split."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planner.test_heads import HEADS, a_model

from partita.planner.batched_layout import Axis, AxisSet, layout, links, spread
from partita.planner.space import AxisRoles, Topology, axis_roles, cluster_topology, mesh_topology, rows
from partita.sharding.mesh import parse_mesh
from partita.specs import parse_cluster

TWO = cluster_topology(parse_cluster("h100:2x4"))
NAMES = {"decode": 1, "prefill": 6}


def spread_out(
    topology: Topology, kinds, counts, batches: list[int], queries: int, context: int = 100, enough=False
) -> AxisSet:
    batch = np.array([batches], dtype=float)
    return spread(a_model(2, 4), topology, kinds, counts, batch, queries, context, enough=enough)


def product(letters: list[Axis], shape: tuple[int, int]) -> np.ndarray:
    found = np.ones(shape)
    for letter in letters:
        found = found * letter.sizes
    return found


@given(
    heads=st.sampled_from(HEADS),
    queries=st.sampled_from([1, 2, 6, 100]),
    batches=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    enough=st.booleans(),
)
def test_the_axes_of_a_role_have_all_its_chips(heads, queries: int, batches: list[int], enough: bool):
    model = a_model(*heads)
    kinds = axis_roles(model, TWO, "prefill")
    counts = rows(TWO, len(kinds), 2)
    batch = np.array([batches], dtype=float)
    found = spread(model, TWO, kinds, counts, batch, queries, queries, enough=enough)
    for s in range(2):
        for c, kind in enumerate(kinds):
            mine = [a for a in found.letters if (a.segment, a.kind) == (s, kind)]
            assert (product(mine, found.legal.shape) == counts[:, s, c][:, None]).all()
    assert len({letter.name for letter in found.letters}) == len(found.letters)


@given(queries=st.sampled_from([1, 2, 6]), batches=st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_tokens_are_split_into_no_more_parts_than_there_are(queries: int, batches: list[int]):
    kinds = axis_roles(a_model(2, 4), TWO, "prefill")
    counts = rows(TWO, len(kinds), 3)
    found = spread_out(TWO, kinds, counts, batches, queries, queries)
    shape = found.legal.shape
    basis = {what: product([a for a in found.letters if a.tokens == what], shape) for what in ("b", "l")}
    assert (basis["b"] <= batches).all()
    assert (basis["l"] <= queries).all()
    over = [c for c, kind in enumerate(kinds) if kind.splits_tokens and kind.stored]
    gathered = counts[:, :, over].prod(axis=(1, 2))
    legal = found.legal.any(axis=1)
    assert (gathered[legal] <= max(batches) * queries).all()
    for what, room in (("b", np.array([batches])), ("l", queries)):
        taken = product([a for a in found.letters if a.attends == what], shape)
        assert (taken <= room)[found.legal].all()


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_where_there_is_a_sequence_for_every_chip_the_shortcut_is_the_same(phase):
    """Then no split hangs on the batch, and query tokens stay whole."""
    kinds = axis_roles(a_model(2, 4), TWO, phase)
    counts = rows(TWO, len(kinds), 3)
    short, long = (
        spread_out(TWO, kinds, counts, [8, 64], NAMES[phase], 100, enough=enough) for enough in (True, False)
    )
    assert (short.legal == long.legal).all()
    assert len(short.letters) == len(long.letters)
    for one, other in zip(short.letters, long.letters, strict=True):
        assert (one.segment, one.kind, one.part, one.attends) == (
            other.segment,
            other.kind,
            other.part,
            other.attends,
        )
        assert (one.sizes == other.sizes).all()
    fields = [str(layout(each, phase == "decode")) for each in (short, long)]
    assert fields[0] == fields[1]


def one_row(kind: AxisRoles, size: int, batch: int, queries: int, context: int = 100) -> AxisSet:
    topology = cluster_topology(parse_cluster(f"h100:1x{size}"))
    counts = np.array([[[1.0], [float(size)]]])
    return spread_out(topology, [kind], counts, [batch], queries, context)


def test_gathered_axes_need_a_token_for_every_chip_and_replicas_stand_idle():
    assert one_row(AxisRoles("f-gathered", "heads"), 8, 2, 4).legal.all()
    assert not one_row(AxisRoles("f-gathered", "heads"), 8, 2, 2).legal.any()
    found = one_row(AxisRoles("replica", "heads"), 8, 2, 2)
    assert found.legal.all()
    for tokens in ("b", "l", ""):
        assert product([a for a in found.letters if a.tokens == tokens], (1, 1)).item() == 2


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
    kinds = [AxisRoles("e-gathered", "heads"), AxisRoles("e-gathered", "batch")]
    found = spread_out(topology, kinds, np.array([[[1.0, 1.0], [2.0, 2.0]]]), [2], 4, 4)
    split = {(a.kind.attention, a.tokens, a.attends) for a in found.letters}
    assert {(attention, tokens) for attention, tokens, _ in split} == {("heads", "b"), ("batch", "l")}
    assert ("batch", "l", "b") in split


def test_the_layout_names_every_axis_where_it_is_used():
    kinds = axis_roles(a_model(2, 4), TWO, "decode")
    counts = rows(TWO, len(kinds), 3)
    found = spread_out(TWO, kinds, counts, [3, 8], 1)
    used = layout(found, decode=True)
    letters = {letter.name: letter for letter in found.letters}
    assert set(used.storage.e + used.storage.f) == {n for n, a in letters.items() if a.kind.stored}
    assert set(used.e + used.f) == {n for n, a in letters.items() if not a.kind.splits_tokens}
    assert set(used.attn_b) == {n for n, a in letters.items() if a.attends == "b"}
    assert set(used.attn_s) == {n for n, a in letters.items() if a.attends == "l"}
    assert set(used.attn_k + used.attn_g) == {n for n, a in letters.items() if a.attends in ("k", "g")}
    assert set(used.tokens_b) == {n for n, a in letters.items() if a.tokens == "b"}
    assert used.attn_l == ""
    assert set(layout(found, decode=False).attn_l) == set(used.attn_s)


def test_axes_lie_on_the_levels_of_their_slot():
    kinds = axis_roles(a_model(2, 4), TWO, "decode")
    found = spread_out(TWO, kinds, rows(TWO, len(kinds), 3), [8], 1)
    for letter in found.letters:
        parts = links(TWO, found).parts[letter.name]
        assert [np.max(part) > 1 for part in parts] == [letter.segment == 0, letter.segment == 1]
    topology = mesh_topology(parse_mesh("x=4,y=2"), parse_cluster("h100:2x4"))
    found = spread_out(topology, kinds, rows(topology, len(kinds), 3), [8], 1)
    for letter in found.letters:
        parts = links(topology, found).parts[letter.name]
        assert [np.max(part) for part in parts] == ([2, 2] if letter.segment == 0 else [1, 2])
        assert (
            np.prod([np.broadcast_to(p, letter.sizes.shape) for p in parts], axis=0) == letter.sizes
        ).all()
