"""Reading collectives from HLO text, in each of the ways that XLA writes it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from partita.measure.hlo import count_hlo

SIZES = (2, 2, 2)
ADD = "%add.1 (a: f32[], b: f32[]) -> f32[] {\n  ROOT %sum = f32[] add(%a, %b)\n}\n"


def module(*lines: str, before: str = "") -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return (
        f"HloModule jit_step, is_scheduled=true, entry_computation_layout={{(f32[8]{{0}})->f32[8]{{0}}}}\n\n"
        f"{ADD}\n{before}\n"
        f"ENTRY %main.2_spmd (p.1: f32[8]) -> f32[8] {{\n  %p.1 = f32[8]{{0}} parameter(0)\n{body}\n}}\n"
    )


def counted(*lines: str, before: str = "", axes: str = "xyz", sizes: tuple[int, ...] = SIZES):
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
    assert counted(line) == {("all-gather", over): (Fraction(16 * 8 * 4 * (chips - 1), chips), 1)}


def test_groups_on_a_mesh_whose_axes_differ():
    line = "%s = f32[12]{0} all-reduce(%p.1), replica_groups={{0,1,2},{3,4,5}}, to_apply=%add.1"
    assert counted(line, axes="ab", sizes=(2, 3)) == {("all-reduce", "b"): (Fraction(2 * 48 * 2, 3), 1)}
    # an axis of one chip has no place in a group
    line = "%s = f32[12]{0} all-reduce(%p.1), replica_groups={{0,1},{2,3}}, to_apply=%add.1"
    assert counted(line, axes="abc", sizes=(2, 1, 2)) == {("all-reduce", "c"): (Fraction(48), 1)}


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
def test_bytes_of_every_kind(line: str, key: tuple[str, str], sent: int):
    assert counted(line) == {key: (sent, 1)}


def test_tensors_merged_into_one_collective_count_each():
    line = "%r = (f32[4]{0}, s32[2,3]{1,0}) all-reduce(%a, %b), replica_groups=[4,2]<=[8], to_apply=%add.1"
    assert counted(line) == {("all-reduce", "z"): (16 + 24, 2)}


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
    assert counted(loop, outside, before=before) == {
        ("all-gather", "z"): (31 * 32, 31),
        ("all-reduce", "z"): (30 * 32, 30),
    }


def test_names_and_metadata_are_no_collectives():
    lines = (
        '%all-gather.7 = f32[8]{0} copy(%p.1), metadata={op_name="jit(step)/all-gather(y)"}',
        "%all_reduce.1 = f32[8]{0} add(%all-gather.7, %all-gather.7)",
    )
    assert counted(*lines) == {}


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
        counted(line)
