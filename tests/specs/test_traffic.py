"""Lengths with weights, as text; traffic, and the few requests that stand for many."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InputError
from partita.specs import Traffic, parse_lengths
from partita.specs.traffic import lengths_of, weighted_quantile


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


def traffic_of(rows: list[tuple[int, int, int, float]]) -> Traffic:
    """Traffic from rows of new tokens, output, prefix and weight."""
    new, output, prefix, weight = (np.array(column) for column in zip(*rows, strict=True))
    return Traffic(new + prefix, output, prefix, weight)


def rows(most: int = 3000) -> st.SearchStrategy[list[tuple[int, int, int, float]]]:
    row = st.tuples(st.integers(1, most), st.integers(1, most), st.integers(0, most), st.floats(1e-6, 1e3))
    return st.lists(row, min_size=1, max_size=80)


def test_one_shape():
    one = Traffic.of(2048, 64, 1984)
    assert (one.requests, one.mean_prompt, one.mean_output, one.mean_prefix, one.mean("new")) == (
        1, 2048, 64, 1984, 64,
    )  # fmt: skip
    assert one.longest == 2112
    assert one.buckets(4).prompt.tolist() == [2048]


def test_independent_distributions_are_every_combination():
    both = Traffic.of(parse_lengths("100:3,200:1", "prompt"), parse_lengths("10,20", "output"), 50)
    found = set(zip(both.prompt.tolist(), both.output.tolist(), both.weight.tolist(), strict=True))
    assert found == {(100, 10, 0.375), (100, 20, 0.375), (200, 10, 0.125), (200, 20, 0.125)}
    assert both.prefix.tolist() == [50] * 4
    assert (both.mean_prompt, both.mean_output, both.longest) == (125, 15, 220)


def test_quantiles_weigh_requests():
    some = Traffic([10, 20, 30], [5, 5, 100], weight=[8, 1, 1])
    assert [some.quantile("prompt", share) for share in (0.5, 0.8, 0.9, 1)] == [10, 10, 20, 30]
    assert some.quantile("context", 0.99) == 130
    figures = some.as_json()
    assert figures["requests"] == 3
    assert figures["output"] == {"mean": 14.5, "p50": 5, "p90": 5, "p99": 100, "longest": 100}
    assert json.loads(json.dumps(figures)) == figures


def test_arrays_cannot_be_changed():
    one = Traffic.of(8, 8)
    with pytest.raises(ValueError, match="read-only"):
        one.prompt[0] = 9


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"prompt": [], "output": []}, "prompt", "no requests"),
        ({"prompt": [5, 0], "output": [1, 1]}, "prompt", r"from 1 to 1,000,000,000 \(request 1\)"),
        ({"prompt": [5, -3], "output": [1, 1]}, "prompt", r"-3: .*\(request 1\)"),
        ({"prompt": [5.5], "output": [1]}, "prompt", "whole number"),
        ({"prompt": [float("nan")], "output": [1]}, "prompt", "whole number"),
        ({"prompt": ["5"], "output": [1]}, "prompt", "whole number"),
        ({"prompt": [5], "output": [10**6 + 1]}, "output", "1,000,000"),
        ({"prompt": [5, 5], "output": [1]}, "output", "for 2 prompts"),
        ({"prompt": [5], "output": [1], "prefix": [5]}, "prefix", "less than the prompt"),
        ({"prompt": [5], "output": [1], "prefix": [-1]}, "prefix", "from 0 to"),
        ({"prompt": [5], "output": [1], "weight": [0]}, "weight", "above 0"),
        ({"prompt": [5], "output": [1], "weight": [float("inf")]}, "weight", "above 0"),
        ({"prompt": [5], "output": [1], "weight": [1, 1]}, "weight", "1 numbers, one for each prompt"),
    ],
)
def test_wrong_requests_are_refused_by_name(given: dict[str, Any], field: str, message: str):
    with pytest.raises(InputError, match=message) as caught:
        Traffic(**given)
    assert caught.value.field == field


def test_a_prefix_longer_than_some_prompt_and_too_many_combinations_are_refused():
    with pytest.raises(InputError, match="less than the prompt") as caught:
        Traffic.of(parse_lengths("100,3000", "prompt"), 64, 1920)
    assert (caught.value.field, caught.value.value) == ("prefix", 1920)
    many = parse_lengths(",".join(map(str, range(1001, 2001))), "prompt")
    with pytest.raises(InputError, match="give a trace"):
        Traffic.of(many, many, parse_lengths("1,2,3", "prefix"))


@given(rows(), st.integers(4, 24))
def test_buckets_keep_every_mean_and_are_legal(given: list[tuple[int, int, int, float]], most: int):
    all_of_them = traffic_of(given)
    few = all_of_them.buckets(most)
    assert few.requests <= most
    assert few.weight.sum() == pytest.approx(1, rel=1e-12)
    for field in ("prompt", "output", "prefix", "new"):
        assert few.mean(field) == pytest.approx(all_of_them.mean(field), rel=1e-9)
    # no length but by rounding up outside what there is
    for name in ("new", "output", "prefix"):
        column, whole = getattr(few, name), getattr(all_of_them, name)
        assert whole.min() <= column.min()
        assert column.max() <= whole.max() + 1


@given(rows(most=2))
def test_few_shapes_are_only_merged(given: list[tuple[int, int, int, float]]):
    few = traffic_of(given).buckets(12)
    shapes = {(new + prefix, output, prefix) for new, output, prefix, _ in given}
    assert set(zip(few.prompt.tolist(), few.output.tolist(), few.prefix.tolist(), strict=True)) == shapes


def test_more_buckets_come_nearer_to_means_of_squares():
    random = np.random.default_rng(0)
    prompts = random.lognormal(6, 1, 10_000).astype(int) + 1
    many = Traffic(prompts, random.integers(1, 500, 10_000))
    exact = float(many.weight @ many.prompt.astype(float) ** 2)
    short = [1 - float((few := many.buckets(n)).weight @ few.prompt**2.0) / exact for n in (4, 16, 64)]
    assert short[0] > 0.3
    assert short[1] < 0.06
    assert abs(short[2]) < 0.01


def test_fewer_than_four_buckets_are_refused():
    with pytest.raises(InputError, match="at least 4") as caught:
        Traffic.of(8, 8).buckets(3)
    assert caught.value.field == "buckets"
