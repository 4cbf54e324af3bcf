"""Dealing: the card players' rule, on arrays of positions."""

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from partita.sharding.interleave import from_blocks, to_blocks

SHARDS = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def interleaved(positions: int, shards: list[int]) -> dict[tuple[int, ...], list[int]]:
    """One position after the other to the chips in turn, the first axis moving on with every position."""
    held: dict[tuple[int, ...], list[int]] = {}
    turns = [turn[::-1] for turn in itertools.product(*(range(count) for count in reversed(shards)))]
    for position, turn in zip(range(positions), itertools.cycle(turns), strict=False):
        held.setdefault(turn, []).append(position)
    return held


@given(shards=SHARDS, each=st.integers(1, 5))
def test_blocks_are_what_each_chip_has(shards: list[int], each: int):
    positions = each * math.prod(shards)
    blocks = to_blocks(np.arange(positions), 0, shards).reshape(*shards, each)
    for chip, held in interleaved(positions, shards).items():
        assert blocks[chip].tolist() == held


@given(first=SHARDS, then=SHARDS, each=st.integers(1, 3))
def test_an_axis_added_behind_others_deals_on_what_each_chip_holds(
    first: list[int], then: list[int], each: int
):
    positions = each * math.prod(first + then)
    at_once = to_blocks(np.arange(positions), 0, first + then)
    blocks = to_blocks(np.arange(positions), 0, first).reshape(math.prod(first), -1)
    assert at_once.tolist() == to_blocks(blocks, 1, then).ravel().tolist()


@given(shards=SHARDS, each=st.integers(1, 4), before=st.integers(1, 3), after=st.integers(1, 3))
def test_from_blocks_undoes_to_blocks_on_its_dim_alone(shards: list[int], each: int, before: int, after: int):
    whole = np.arange(before * each * math.prod(shards) * after).reshape(before, -1, after)
    there = to_blocks(whole, 1, shards)
    assert np.array_equal(from_blocks(there, 1, shards), whole)
    for i, j in itertools.product(range(before), range(after)):
        assert np.array_equal(there[i, :, j], to_blocks(whole[i, :, j], 0, shards))


def test_a_cache_grows_where_it_is():
    """More positions are more places at the end of every chip, and chips are equally full on the way."""
    before, after = interleaved(12, [2, 3]), interleaved(18, [2, 3])
    for chip, held in before.items():
        assert after[chip][: len(held)] == held
    counts = [len(held) for held in interleaved(16, [2, 3]).values()]
    assert max(counts) - min(counts) == 1
