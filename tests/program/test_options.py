"""Run options: how overlap is asked for by name, and what has no name."""

from __future__ import annotations

import pytest

from partita.errors import InputError
from partita.program.options import RunOptions, overlap_of


def test_the_most_special_name_counts():
    asked = RunOptions(overlap_of("all=one-way, gather=two-way,ffn/in/gather=none"))
    assert asked.way("ffn/in", "gather") == "none"
    assert asked.way("attention/q", "gather") == "two-way"
    assert asked.way("ffn/out", "scatter") == "one-way"
    assert RunOptions().way("ffn/out", "scatter") == "none"


def test_one_way_for_all_is_short_for_it():
    for way in ("none", "one-way", "two-way"):
        assert RunOptions(overlap_of(way)).way("ffn/out", "scatter") == way
    assert overlap_of({"scatter": "two-way"}) == overlap_of("scatter=two-way")


@pytest.mark.parametrize(
    "asked", ["", "three-way", "gather", "gather=", "=one-way", "ffn/out=one-way", "gather=one-way=two-way"]
)
def test_what_is_no_way_or_no_name_is_refused(asked: str):
    with pytest.raises(InputError, match=r"^overlap: .*accepted are none, one-way, two-way"):
        overlap_of(asked)
