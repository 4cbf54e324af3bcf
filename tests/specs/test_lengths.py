"""Lengths with weights, as text."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InputError
from partita.specs import parse_lengths
from partita.specs.lengths import lengths_of, weighted_quantile


@pytest.mark.parametrize(
    ("text", "tokens", "weight"),
    [
        ("512", [512], [1]),
        ("512:0.7,4096:0.3", [512, 4096], [0.7, 0.3]),
        (" 4096 : 3 , 512:7", [512, 4096], [0.7, 0.3]),
        ("8,16,8,32", [8, 16, 32], [0.5, 0.25, 0.25]),
        ("8:1e-3,16:.003", [8, 16], [0.25, 0.75]),
    ],
)
def test_lengths_are_distinct_ascending_and_weigh_1(text: str, tokens: list[int], weight: list[float]):
    found = parse_lengths(text, "prompt")
    assert found.tokens.tolist() == tokens
    assert found.weight.tolist() == pytest.approx(weight, rel=1e-12)
    assert found.longest == tokens[-1]
    assert found.mean == pytest.approx(np.dot(tokens, weight))


def test_quantiles_are_lengths_that_occur():
    found = parse_lengths("10:0.5,20:0.4,30:0.1", "output")
    assert [found.quantile(share) for share in (0, 0.5, 0.51, 0.9, 0.91, 1)] == [10, 10, 20, 20, 30, 30]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=1), st.integers(1, 20))
def test_a_weighted_quantile_is_that_of_the_repeated_values(pairs: list[tuple[int, int]], twentieths: int):
    values, weights = zip(*pairs, strict=True)
    repeated = np.sort(np.repeat(values, weights))
    position = -(-twentieths * len(repeated) // 20) - 1
    assert weighted_quantile(values, weights, twentieths / 20) == repeated[position]


def test_a_prefix_may_be_empty_and_an_output_is_limited():
    assert parse_lengths("0,10", "prefix").tokens.tolist() == [0, 10]
    assert parse_lengths("1000000", "output").longest == 10**6


@pytest.mark.parametrize(
    ("text", "field", "named"),
    [
        ("", "prompt", "''"),
        ("512,", "prompt", "''"),
        ("-512", "prompt", "'-512'"),
        ("0", "prompt", "from 1 to"),
        ("12.5", "prompt", "'12.5'"),
        ("1_000", "prompt", "'1_000'"),
        ("٣", "prompt", "must be a whole number"),
        ("1000001", "output", "1,000,000"),
        ("9" * 5000, "prompt", "1,000,000,000"),
        ("512:", "prompt", "the weight ''"),
        ("512:0", "prompt", "the weight '0'"),
        ("512:-1", "prompt", "the weight '-1'"),
        ("512:nan,1:1", "prompt", "the weight 'nan'"),
        ("512:1e999", "prompt", "the weight '1e999'"),
        ("512:0.5:2", "prompt", "the weight '0.5:2'"),
        ("512:0.7,4096", "prompt", "some have none"),
    ],
    ids=lambda given: repr(given)[:40],
)
def test_what_is_no_length_is_refused_by_name(text: str, field: str, named: str):
    with pytest.raises(InputError) as caught:
        parse_lengths(text, field)
    assert (caught.value.field, caught.value.value) == (field, text)
    assert named in caught.value.message
    assert "512:0.7,4096:0.3" in caught.value.message


def test_a_very_long_list_is_refused_without_repeating_it():
    with pytest.raises(InputError, match="give a trace file") as caught:
        parse_lengths(",".join(map(str, range(1, 1002))), "prompt")
    assert len(str(caught.value)) < 150


def test_weights_of_any_size_are_scaled():
    found = lengths_of([3, 1], [1e12, 1e-12])
    assert math.isclose(found.weight.sum(), 1)
    assert found.mean == pytest.approx(3)
