"""Kept prompts: the longest common beginning in whole blocks is found, and the oldest go first."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.prefixes import BLOCK, Prefixes


def test_the_longest_beginning_in_whole_blocks():
    kept, ids = Prefixes(4), list(range(100, 100 + 3 * BLOCK))
    kept.keep(ids, "a")
    for tokens, found in [(3 * BLOCK + 1, 3), (3 * BLOCK, 2), (2 * BLOCK + 1, 2), (BLOCK, 0), (1, 0)]:
        prefix, reused = kept.match([*ids, 7][:tokens])
        assert reused == found * BLOCK  # never all: the last token is read for its logits
        assert (prefix is None) == (not found)
    assert kept.match([1, *ids])[1] == 0


def test_what_was_used_last_is_kept():
    kept = Prefixes(2)
    prompts = [[number] * (BLOCK + 1) for number in range(3)]
    for number in (0, 1):
        kept.keep(prompts[number], number)
    prefix, _ = kept.match(prompts[0])
    assert prefix is not None
    kept.used(prefix)
    kept.keep(prompts[2], 2)
    assert [kept.match(each)[1] for each in prompts] == [BLOCK, 0, BLOCK]


def test_a_cache_of_windows_serves_its_end_alone():
    kept, ids = Prefixes(2, tail=BLOCK), list(range(4 * BLOCK))
    kept.keep(ids, "a")
    assert kept.match([*ids, 1])[1] == 4 * BLOCK
    assert kept.match(ids[: 3 * BLOCK + 1])[1] == 3 * BLOCK
    assert kept.match(ids[: 2 * BLOCK + 1])[1] == 0


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), max_size=12))
def test_as_a_search_through_all_that_are_kept(prompts: list[list[int]]):
    """Each number stands for a block; of what is kept the last ones count, as nothing is used between."""
    kept = Prefixes(3)
    held: list[list[int]] = []
    for blocks in prompts:
        ids = np.repeat(blocks, BLOCK).tolist()
        best = max((_common(blocks, other) for other in held), default=0)
        assert kept.match([*ids, 9])[1] == best * BLOCK
        kept.keep(ids, None)
        if best < len(blocks):
            held = [*held, blocks][-3:]
        assert len(kept) == len(held)


def _common(a: list[int], b: list[int]) -> int:
    found = 0
    while found < min(len(a), len(b)) and a[found] == b[found]:
        found += 1
    return found
