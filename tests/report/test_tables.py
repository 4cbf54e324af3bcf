"""What tables for people are made of: columns, and layouts and limits in words."""

from io import StringIO

import pytest
from rich.console import Console

from partita.report import tables
from partita.sharding.roles import parse_layout


def test_a_narrow_page_folds_or_cuts_words_and_keeps_whole_columns():
    words = "abcdefghijklmnop"
    table = tables.plain_table("folds", "cuts", "size", right=("size",), whole=("size",), cut=("cuts",))
    table.add_row(words, words, "12 MB")
    console = Console(width=26, file=StringIO(), record=True)
    console.print(table)
    rows = [line.split(maxsplit=2) for line in console.export_text().splitlines()[1:]]
    assert "".join(row[0] for row in rows) == words
    assert rows[0][1].endswith("…")
    assert rows[0][1][:-1] in words
    assert rows[0][2].strip() == "12 MB"
    assert len(rows) > 1


@pytest.mark.parametrize(
    ("binds", "words"),
    [
        ("compute", "compute"),
        ("weights", "weights"),
        ("kv", "KV cache"),
        ("link:x", "links of x"),
        ("link:yz", "links of y, z"),
    ],
)
def test_what_limits_a_step_is_in_words(binds: str, words: str):
    assert tables.limit_text(binds) == words


@pytest.mark.parametrize(
    ("layout", "lines"),
    [
        ("x=e,y=f/batch", ["x=e,y=f/batch"]),
        ("ws2d/x=batch,y=heads", ["ws2d/x=batch,y=heads"]),
        ("x=replica,y=f,z=f/x=batch,y=heads,z=context", ["x=replica,y=f,z=f/", "x=batch,y=heads,z=context"]),
        (
            "x=replica,y=e-gathered,z=f-gathered,w=replica/batch",
            ["x=replica,y=e-gathered,z=f-gathered,", "w=replica/", "batch"],
        ),
    ],
)
def test_a_wide_layout_is_broken_where_it_has_joints(layout: str, lines: list[str]):
    roles = parse_layout(layout, "".join(a for a in "xyzw" if f"{a}=" in layout))
    found = tables.layout_text(roles).plain
    assert found.split("\n") == lines
    assert found.replace("\n", "") == str(roles)
