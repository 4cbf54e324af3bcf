"""Lengths of accepted drafts: the closed form, its inverse, and what is published."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sizes import examples

from partita.errors import InputError
from partita.specs.drafts import (
    METHODS,
    DraftRequest,
    acceptance_of,
    parse_draft,
    published_drafts,
    tokens_per_step,
)


def test_tokens_of_a_step_are_leviathans_equation_1():
    assert tokens_per_step(0.8, 4) == pytest.approx((1 - 0.8**5) / (1 - 0.8))
    assert [tokens_per_step(each, 3) for each in (0.0, 1.0)] == [1, 4]
    assert tokens_per_step(0.875, 1) == 1.875


@given(st.floats(0, 1), st.integers(1, 16))
@examples(50)
def test_the_acceptance_gives_the_tokens_back(acceptance: float, drafted: int):
    tokens = tokens_per_step(acceptance, drafted)
    assert tokens_per_step(acceptance_of(tokens, drafted), drafted) == pytest.approx(tokens)


def test_published_lengths_have_sources_and_are_possible():
    found = published_drafts()
    assert {one.method for one in found} == {"mtp", "eagle3"}
    for one in found:
        assert "https://" in one.source
        assert 1 < one.tokens < 1 + one.drafted
        assert tokens_per_step(one.acceptance, one.drafted) == pytest.approx(one.tokens)


def test_what_is_written():
    assert parse_draft("eagle3") == DraftRequest("eagle3")
    assert parse_draft("mtp, acceptance=0.85,k=1") == DraftRequest("mtp", 0.85, 1)
    assert parse_draft("eagle3,parameters=1.2B,k=16") == DraftRequest("eagle3", None, 16, 1_200_000_000)
    assert parse_draft("ngram,acceptance=0") == DraftRequest("ngram", 0.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "accepted are ngram, mtp, eagle3"),
        ("medusa", "accepted are ngram, mtp, eagle3"),
        ("mtp,", "accepted are"),
        ("mtp,k", "k must be a whole number from 1 to 16"),
        ("mtp,k=1,k=2", "accepted are"),
        ("mtp,k=0", "k must be a whole number from 1 to 16"),
        ("mtp,k=17", "k must be a whole number from 1 to 16"),
        ("mtp,k=1e9", "k must be"),
        ("mtp,acceptance=1.01", "acceptance must be a number from 0 to 1"),
        ("mtp,acceptance=nan", "acceptance must be a number from 0 to 1"),
        ("mtp,acceptance=", "acceptance must be a number from 0 to 1"),
        ("eagle3,parameters=0", "parameters must be a number above zero"),
        ("eagle3,parameters=1T", "parameters must be a number above zero"),
        ("ngram", "needs acceptance="),
        ("ngram,acceptance=0.5,parameters=1B", "has no head"),
    ],
)
def test_what_is_refused(text: str, message: str):
    with pytest.raises(InputError, match=message) as error:
        parse_draft(text)
    assert error.value.field == "draft"
    assert error.value.value == text


def test_every_method_is_named():
    assert METHODS == ("ngram", "mtp", "eagle3")
