"""Counting a jaxpr: loops, operands, dots, and each collective by the bytes one device sends; and reading
collectives from HLO text, in each of the ways that XLA writes it."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from partita.measure.counts import Counts, count_hlo, count_jaxpr

SIZES = {"x": 2, "y": 4}


def counted(step: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = jnp.float32) -> Counts:
    """What one device does in `step`, whose arguments are its own parts, of these shapes."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"), (AxisType.Explicit,) * 2)
    whole = PartitionSpec()
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(whole,) * len(shapes), out_specs=whole, check_vma=False)
    jaxpr = jax.make_jaxpr(mapped)(*[jax.ShapeDtypeStruct(shape, dtype) for shape in shapes])
    return count_jaxpr(jaxpr, SIZES)


def only(counts: Counts) -> tuple[tuple[str, str], int | float, int]:
    ((key, sent),) = counts.sent_bytes.items()
    assert set(counts.messages) == {key}
    return key, float(sent), counts.messages[key]


@pytest.mark.parametrize(
    ("step", "key", "sent"),
    [
        (lambda t: jax.lax.all_gather(t, "y", axis=0, tiled=True), ("all-gather", "y"), 3 * 256),
        (lambda t: jax.lax.all_gather(t, ("y", "x"), axis=1, tiled=True), ("all-gather", "xy"), 7 * 256),
        (
            lambda t: jax.lax.psum_scatter(t, "y", scatter_dimension=0, tiled=True),
            ("reduce-scatter", "y"),
            192,
        ),
        (lambda t: jax.lax.psum(t, "x"), ("all-reduce", "x"), 256),
        (lambda t: jax.lax.psum(t, ("x", "y")), ("all-reduce", "xy"), 2 * 256 * 7 / 8),
        (lambda t: jax.lax.all_to_all(t, "y", 0, 1, tiled=True), ("all-to-all", "y"), 192),
        (lambda t: jax.lax.ppermute(t, "y", [(0, 1), (1, 0)]), ("collective-permute", "y"), 256),
    ],
    ids=[
        "all-gather",
        "all-gather of two",
        "reduce-scatter",
        "all-reduce",
        "all-reduce of two",
        "all-to-all",
        "permute",
    ],
)
def test_bytes_of_every_kind(step: Callable[..., Any], key: tuple[str, str], sent: float):
    assert only(counted(step, (8, 8))) == (key, sent, 1)
    assert only(counted(step, (8, 8), dtype=jnp.bfloat16)) == (key, sent / 2, 1)


def test_every_operand_of_one_sum_counts():
    found = counted(lambda a, b: jax.lax.psum((a, b), "x"), (4,), (3, 2))
    assert only(found) == (("all-reduce", "x"), 16 + 24, 2)


def test_a_scan_counts_once_for_each_turn():
    def inner(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jax.lax.psum(x, "y"), None

    def outer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        x, _ = jax.lax.scan(inner, x @ w, None, length=5)
        return jax.lax.psum(x, "x"), None

    found = counted(lambda x, ws: jax.lax.scan(outer, x, ws)[0], (2, 4), (3, 4, 4))
    assert found.messages == {("all-reduce", "y"): 15, ("all-reduce", "x"): 3}
    assert found.sent_bytes["all-reduce", "y"] == 15 * 2 * 32 * 3 / 4
    assert found.flops == 3 * 2 * 2 * 4 * 4


def test_functions_called_inside_count():
    inner = jax.jit(lambda t: jax.lax.psum(t @ t, "x"))
    found = counted(lambda t: inner(inner(t)), (4, 4))
    assert found.messages == {("all-reduce", "x"): 2}
    assert found.flops == 2 * 2 * 4**3


@pytest.mark.parametrize(
    ("text", "shapes", "flops"),
    [
        ("BLE,EF->BLF", [(2, 3, 5), (5, 7)], 2 * 2 * 3 * 5 * 7),
        ("BLKGD,BSKD->BLKGS", [(2, 3, 5, 4, 8), (2, 9, 5, 8)], 2 * 2 * 3 * 5 * 4 * 8 * 9),
        ("BLKGD,KGDE->BLE", [(2, 3, 5, 4, 8), (5, 4, 8, 6)], 2 * 2 * 3 * 5 * 4 * 8 * 6),
    ],
)
def test_flops_of_einsums(text: str, shapes: list[tuple[int, ...]], flops: int):
    assert counted(lambda a, b: jnp.einsum(text, a, b), *shapes).flops == flops


@pytest.mark.parametrize(
    "step",
    [
        lambda t: jax.lax.while_loop(lambda u: u.sum() < 10, lambda u: u + 1, t),
        lambda t: jax.lax.cond(t.sum() > 0, lambda u: u, lambda u: -u, t),
    ],
    ids=["while", "cond"],
)
def test_a_program_of_unknown_length_is_refused(step: Callable[..., Any]):
    with pytest.raises(ValueError, match=r"cannot count a program with '(while|cond)'"):
        counted(step, (4,))


# -- in HLO ---------------------------------------------------------------------------------------------

CUBE = (2, 2, 2)
ADD = "%add.1 (a: f32[], b: f32[]) -> f32[] {\n  ROOT %sum = f32[] add(%a, %b)\n}\n"


def module(*lines: str, before: str = "") -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return (
        f"HloModule jit_step, is_scheduled=true, entry_computation_layout={{(f32[8]{{0}})->f32[8]{{0}}}}\n\n"
        f"{ADD}\n{before}\n"
        f"ENTRY %main.2_spmd (p.1: f32[8]) -> f32[8] {{\n  %p.1 = f32[8]{{0}} parameter(0)\n{body}\n}}\n"
    )


def in_hlo(*lines: str, before: str = "", axes: str = "xyz", sizes: tuple[int, ...] = CUBE):
    found = count_hlo(module(*lines, before=before), axes, sizes)
    assert found.flops == 0
    assert found.sent_bytes.keys() == found.messages.keys()
    return {key: (sent, found.messages[key]) for key, sent in found.sent_bytes.items()}


@pytest.mark.parametrize(
    ("groups", "over"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", "z"),
        ("{{0,2},{1,3},{4,6},{5,7}}", "y"),
        ("{{0,4},{1,5},{2,6},{3,7}}", "x"),
        ("{{0,1,2,3},{4,5,6,7}}", "yz"),
        ("{{0,1,4,5},{2,3,6,7}}", "xz"),
        ("{{0,4,1,5,2,6,3,7}}", "xyz"),
        ("[4,2]<=[8]", "z"),
        ("[2,4]<=[8]", "yz"),
        ("[1,8]<=[8]", "xyz"),
        ("[4,2]<=[2,4]T(1,0)", "x"),
        ("[4,2]<=[2,2,2]T(0,2,1)", "y"),
        ("[2,4]<=[2,2,2]T(1,0,2)", "xz"),
        ("mesh['x'=2,'y'=2,'z'=2] {'z'}", "z"),
        ("mesh['x'=2,'y'=2,'z'=2] {'y','z'}", "yz"),
        ("mesh['x'=2,'y'=2,'z'=2] {'z','y','x'}", "xyz"),
    ],
)
def test_groups_in_every_notation(groups: str, over: str):
    chips = 2 ** len(over)
    line = f"%ag = f32[16,8]{{1,0}} all-gather(%p.1), channel_id=1, replica_groups={groups}, dimensions={{0}}"
    assert in_hlo(line) == {("all-gather", over): (Fraction(16 * 8 * 4 * (chips - 1), chips), 1)}


def test_groups_on_a_mesh_whose_axes_differ():
    line = "%s = f32[12]{0} all-reduce(%p.1), replica_groups={{0,1,2},{3,4,5}}, to_apply=%add.1"
    assert in_hlo(line, axes="ab", sizes=(2, 3)) == {("all-reduce", "b"): (Fraction(2 * 48 * 2, 3), 1)}
    # an axis of one chip has no place in a group
    line = "%s = f32[12]{0} all-reduce(%p.1), replica_groups={{0,1},{2,3}}, to_apply=%add.1"
    assert in_hlo(line, axes="abc", sizes=(2, 1, 2)) == {("all-reduce", "c"): (Fraction(48), 1)}


@pytest.mark.parametrize(
    ("line", "key", "sent"),
    [
        (
            "%g = f32[4,8,48]{1,0,2} all-gather(%m), channel_id=1, "
            "replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={2}",
            ("all-gather", "yz"),
            4 * 8 * 12 * 4 * 3,
        ),
        (
            "%s = bf16[8,8,6]{1,0,2} reduce-scatter(%m), "
            "replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={2}, to_apply=%add.1",
            ("reduce-scatter", "yz"),
            8 * 8 * 6 * 2 * 3,
        ),
        (
            "%r = f32[4,1]{1,0} all-reduce(%m), replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%add.1",
            ("all-reduce", "x"),
            4 * 4,
        ),
        (
            "%t = (f32[4,6]{1,0}, f32[4,6]{1,0}, /*index=2*/f32[4,6]{1,0}, f32[4,6]{1,0})"
            " all-to-all(%a, %b, %c, %d), replica_groups=mesh['x'=2,'y'=2,'z'=2] {'y','z'}",
            ("all-to-all", "yz"),
            4 * 6 * 4 * 3,
        ),
        (
            "%p = s8[8,1,6]{1,0,2:T(8,128)} collective-permute(%m), source_target_pairs={{0,0},{4,1},{1,4}}",
            ("collective-permute", ""),
            48,
        ),
    ],
    ids=["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute"],
)
def test_bytes_of_every_kind_in_hlo(line: str, key: tuple[str, str], sent: int):
    assert in_hlo(line) == {key: (sent, 1)}


def test_tensors_merged_into_one_collective_count_each():
    line = "%r = (f32[4]{0}, s32[2,3]{1,0}) all-reduce(%a, %b), replica_groups=[4,2]<=[8], to_apply=%add.1"
    assert in_hlo(line) == {("all-reduce", "z"): (16 + 24, 2)}


def test_loops_count_as_often_as_they_run():
    before = """%inner (i: f32[8]) -> f32[8] {
  ROOT %g = f32[16]{0} all-gather(%i), replica_groups={{0,1},{2,3},{4,5},{6,7}}, dimensions={0}
}

%body.3 (q: (s32[], f32[8])) -> (s32[], f32[8]) {
  %c = f32[8]{0} call(%q), to_apply=%inner
  ROOT %r = f32[8]{0} all-reduce(%c), replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add.1
}
"""
    loop = (
        "%w = (s32[], f32[8]) while(%t), condition=%cond.4, body=%body.3, "
        'backend_config={"known_trip_count":{"n":"30"}}'
    )
    outside = "%g.2 = f32[16]{0} all-gather(%p.1), replica_groups={{0,1},{2,3},{4,5},{6,7}}, dimensions={0}"
    assert in_hlo(loop, outside, before=before) == {
        ("all-gather", "z"): (31 * 32, 31),
        ("all-reduce", "z"): (30 * 32, 30),
    }


def test_names_and_metadata_are_no_collectives():
    lines = (
        '%all-gather.7 = f32[8]{0} copy(%p.1), metadata={op_name="jit(step)/all-gather(y)"}',
        "%all_reduce.1 = f32[8]{0} add(%all-gather.7, %all-gather.7)",
    )
    assert in_hlo(*lines) == {}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("%w = f32[8] while(%p.1), condition=%add.1, body=%add.1", "loop of unknown length"),
        (
            "%g = f32[16] all-gather(%p.1), replica_groups=odd, dimensions={0}",
            "replica groups not understood",
        ),
        (
            "%g = (f32[8], f32[16]) all-gather-start(%p.1), replica_groups={{0,1}}, dimensions={0}",
            "asynchronous collective",
        ),
    ],
)
def test_what_cannot_be_read_is_said(line: str, problem: str):
    with pytest.raises(ValueError, match=problem):
        in_hlo(line)
