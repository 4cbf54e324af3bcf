"""Prompt lookup against a search of the whole text, and when verifying its drafts pays."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine import asking
from tests.sizes import examples

from partita.engine.drafting import (
    LONGEST,
    SHORTEST,
    WIDTH,
    Acceptance,
    Drafter,
    Lookup,
    Pace,
    Writing,
    check_draft,
)
from partita.engine.engine import EngineOptions
from partita.errors import InputError
from partita.specs import Formats


def searched(tokens: list[int], most: int) -> tuple[int, list[int]]:
    """The same as `Lookup.draft`, by comparing every place."""
    best, source = SHORTEST - 1, -1
    for place in range(SHORTEST, len(tokens)):
        alike = 0
        while alike < min(place, LONGEST) and tokens[place - 1 - alike] == tokens[-1 - alike]:
            alike += 1
        if alike >= best and alike >= SHORTEST:
            best, source = alike, place
    if source < 0 or most < 1:
        return 0, []
    copied = list(tokens)
    for at in range(most):
        copied.append(copied[source + at])
    return best, copied[len(tokens) :]


@given(st.lists(st.integers(0, 3), max_size=14), st.integers(0, 9))
@examples(50)
def test_the_longest_match_and_of_equals_the_latest(tokens: list[int], most: int):
    assert Lookup(tokens).draft(most) == searched(tokens, most)


def test_a_text_that_repeats_itself_goes_on():
    assert Lookup([7, 1, 2, 1, 2]).draft(5) == (2, [1, 2, 1, 2, 1])
    assert Lookup([3, 3, 3]).draft(4) == (2, [3, 3, 3, 3])
    assert Lookup([1, 2, 3, 4]).draft(4) == (0, [])


def test_a_token_costs_no_search_of_the_text():
    """Of 200,000 tokens that are all alike, and of as many that are not; a search of them takes minutes."""
    random = np.random.default_rng(0)
    for tokens in ([5] * 200_000, random.integers(0, 50_000, 200_000).tolist()):
        start, lookup = time.process_time(), Lookup(tokens)
        for token in tokens[:2000]:
            lookup.push(token)
            lookup.draft(7)
        assert time.process_time() - start < 30


def test_acceptance_is_a_mean_of_the_latest():
    found = Acceptance()
    assert found.expected(5) == 0
    found.count(5, 7)
    assert found.expected(5) == pytest.approx(7 / (0.8 + 1))
    assert found.expected(2) == found.expected(3) == 0  # counted apart
    found.count(9, 0)
    assert found.expected(16) == pytest.approx(7 * 0.8 / (0.8 * 1.8 + 1))
    assert found.expected(16, so_far=4) == pytest.approx((7 * 0.8 + 4) / (0.8 * 1.8 + 2))


def test_a_match_grows_as_its_draft_is_accepted():
    found = Acceptance()
    found.count(2, 2)  # of the second token the match was of 3, of the third it would have been of 4
    assert [found.expected(length) for length in (2, 3, 4, 5)] == pytest.approx(
        [2 / 1.8, 1 / 1.8, 1 / 1.8, 0]
    )
    found.count(2, 0)
    assert found.expected(2) == pytest.approx(2 * 0.8 / (1.8 * 0.8 + 1))
    assert found.expected(3) == pytest.approx(1 / 1.8)


def test_what_would_have_been_accepted_is_measured_without_verifying():
    """Tokens that come one by one say how the draft would have done."""
    writing = Writing([1, 2, 3, 4, 5, 1, 2], most=50)
    tokens, expected = writing.draft(3)
    assert (tokens, expected) == ([3, 4, 5], 0)
    for token, accepted in ((3, 1 / 2), (4, 2 / 2)):
        writing.push(token)
        assert writing.draft(3)[1] == pytest.approx(accepted)
    assert writing.acceptance.expected(2) == 0
    writing.push(9)
    assert writing.acceptance.expected(2) == pytest.approx(2 / 1.8)
    assert writing.left == 47


def test_no_more_is_drafted_than_can_be_written():
    writing = Writing([1, 2, 1, 2], most=3)
    assert writing.draft(7)[0] == [1, 2]  # the last of three is drawn behind them
    writing.push(1)
    writing.push(2)
    assert writing.draft(7) == ([], 0)


def test_a_ratio_is_priced_until_it_is_timed():
    pace = Pace(2.5)
    for seconds in (9.0, 0.5, 0.5):  # the first has compiled
        pace.timed(seconds, False)
    for seconds in (0.8, 0.8):
        pace.timed(seconds, True)
    assert (pace.ratio, pace.single) == (2.5, 0.5)
    pace.timed(0.6, True)
    assert pace.ratio == pytest.approx(0.8 / 0.5)
    for _ in range(16):
        pace.timed(0.75, False)
    assert pace.ratio == pytest.approx(0.8 / 0.75)


def repeating(drafter: Drafter, slot: int, rounds: int) -> list[bool]:
    """Writes a text that repeats itself; whether there were drafts to verify before each token."""
    found = []
    for token in [1, 2, 3, 4, 5, 6] * rounds:
        found.append(bool(drafter.drafts()))
        drafter.push(slot, token)
    return found


def test_drafts_begin_and_end_with_what_is_accepted():
    drafter = Drafter("auto", WIDTH, Pace(2.0))
    drafter.begin(0, [1, 2, 3, 4, 5, 6], most=10_000)
    began = repeating(drafter, 0, 4)
    first = began.index(True)
    assert 2 < first < 12
    assert all(began[first:])
    random, stopped = np.random.default_rng(1), []
    for token in random.integers(7, 5_000, 200):  # nothing is repeated
        stopped.append(bool(drafter.drafts()))
        drafter.push(0, int(token))
    assert not any(stopped[8:])


def test_steps_of_one_token_are_timed_now_and_then():
    drafter = Drafter("auto", WIDTH, Pace(1.0))
    drafter.begin(0, [1, 2, 3, 4, 5, 6], most=10_000)
    verified = repeating(drafter, 0, 30)[20:]
    assert verified.count(False) in (4, 5)  # of 160


def test_matches_that_are_not_accepted_are_not_verified():
    """Two tokens that were there before, each time with others behind them."""
    drafter, random = Drafter("auto", WIDTH, Pace(1.5)), np.random.default_rng(2)
    drafter.begin(0, [1, 2, 3], most=10_000)
    forced = Drafter("ngram", WIDTH, Pace(1.5))
    forced.begin(0, [1, 2, 3], most=10_000)
    verified, matched = 0, 0
    for _ in range(100):
        for token in (1, 2, int(random.integers(10, 10**6))):
            verified += bool(drafter.drafts())
            matched += bool(forced.drafts())
            drafter.push(0, token)
            forced.push(0, token)
    assert matched > 90
    assert verified == 0


def test_a_batch_verifies_where_all_of_it_gains():
    """One of eight sequences repeats itself: its drafts do not pay for the longer steps of the others."""
    drafter = Drafter("auto", WIDTH, Pace(2.0))
    for slot in range(8):
        drafter.begin(slot, [100 + slot, 1, 2, 3, 4, 5, 6], most=10_000)
    assert not any(repeating(drafter, 0, 5))
    drafter.drafts()
    assert drafter.gain == pytest.approx((1 + drafter._writing[0].draft(WIDTH - 1)[1] / 8) / 2.0)
    for slot in range(1, 8):
        drafter.end(slot)
    assert drafter.drafts()


def test_seconds_to_save():
    drafter = Drafter("auto", WIDTH, Pace(2.0))
    drafter.begin(0, [1, 2, 3, 4, 5, 6], most=1000)
    assert drafter.seconds_to_save == 0
    for seconds in (5.0, 0.1, 0.1):  # the first has compiled
        assert drafter.pace.single == 0
        drafter.pace.timed(seconds, False)
    repeating(drafter, 0, 10)
    drafter.drafts()
    assert drafter.gain > 2
    assert drafter.seconds_to_save == pytest.approx(940 * 0.1 * (1 - 1 / drafter.gain))


def test_off_drafts_nothing():
    drafter = Drafter("off", 1, Pace(1.0))
    drafter.begin(0, [1, 2, 1, 2], most=10)
    assert not any(repeating(drafter, 0, 2))


def test_which_drafts_there_are():
    assert [check_draft(each) for each in ("off", "ngram", "auto")] == ["off", "ngram", "auto"]
    with pytest.raises(InputError, match="accepted are off, ngram, auto"):
        check_draft("tree")
    with pytest.raises(InputError, match="draft"):
        asking.engine(options=EngineOptions(draft="yes"))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("activations", "draft"), [("f32", "auto"), ("bf16", "off")])
def test_auto_is_for_float32(activations: str, draft: str):
    formats = Formats.model_validate({"weights": activations, "activations": activations, "kv": activations})
    assert asking.engine(formats=formats).draft == draft


def test_auto_verifies_once_it_is_compiled_and_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    """What verifies is compiled beside the steps, as soon as that saves more than it takes."""
    from partita.engine.draft_steps import DraftSteps
    from partita.specs.sampling import Sampling

    engine = asking.engine()
    asked = Sampling(max_tokens=150, ignore_eos=True)
    engine.draft = "off"
    [[alone]] = engine.complete([[1, 2, 3]], asked)
    assert len({*pairwise(alone.tokens)}) < 60  # greedy text of a tiny model repeats itself
    engine.draft = "auto"
    drafters: list[Drafter] = []
    plain = engine._drafter

    def drafter(slots):
        found = plain(slots)
        found.pace = Free(1.01)
        drafters.append(found)
        return found

    class Free(Pace):
        @property
        def ratio(self) -> float:
            return self.priced

    monkeypatch.setattr(engine, "_drafter", drafter)
    monkeypatch.setattr(DraftSteps, "compile_seconds", float("inf"))
    [[never]] = engine.complete([[1, 2, 3]], asked)
    assert never.tokens == alone.tokens
    assert not drafters[-1].steps
    wait = DraftSteps.prepare

    def prepare(self, layout, kind, rows, given):
        wait(self, layout, kind, rows, given)
        self.pair(layout, kind, rows)

    monkeypatch.setattr(DraftSteps, "prepare", prepare)
    monkeypatch.setattr(Drafter, "seconds_to_save", float("inf"))
    monkeypatch.setattr(DraftSteps, "compile_seconds", 0.0)
    [[drafted]] = engine.complete([[1, 2, 3]], asked)
    assert drafted == alone
    assert sum(drafters[-1].steps) > len(drafters[-1].steps) > 3
