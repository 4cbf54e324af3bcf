"""Settings of a request: defaults, what each field accepts, and how what it does not is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from partita.errors import InputError
from partita.specs.sampling import Sampling


def test_by_default_the_most_likely_token_is_taken():
    plain = Sampling()
    assert plain.greedy
    assert not plain.penalised
    assert (plain.n, plain.seed, plain.logprobs, plain.stop, plain.logit_bias) == (1, None, None, (), {})
    with pytest.raises(ValidationError):
        plain.n = 2


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_tokens", [1, 10**9]),
        ("temperature", [0, 1e-6, 1, 100]),
        ("top_k", [1, 10**9]),
        ("top_p", [1e-9, 0.5, 1]),
        ("min_p", [0, 1]),
        ("repetition_penalty", [0.01, 1, 100]),
        ("presence_penalty", [-2, 2]),
        ("frequency_penalty", [-2, 2]),
        ("logit_bias", [{}, {0: -100, 7: 100}]),
        ("ignore_eos", [True, False]),
        ("skip_special_tokens", [True, False]),
        ("logprobs", [None, 0, 20]),
        ("n", [1, 1024]),
        ("seed", [None, 0, -(2**63), 2**63 - 1]),
    ],
    ids=str,
)
def test_ends_of_every_range(field: str, values: list):
    for value in values:
        assert getattr(Sampling(**{field: value}), field) == value


def test_other_ways_to_write_the_same():
    assert Sampling(top_k=-1).top_k == 0
    assert Sampling(stop="\n").stop == ("\n",)
    assert Sampling(stop=["a", "b", "a"]).stop == ("a", "b")
    bias: Any = {"50": -1}
    assert Sampling(logit_bias=bias).logit_bias == {50: -1.0}
    assert Sampling(stop_token_ids=[3, 1]).stop_token_ids == (3, 1)
    numpy: Any = {"n": np.int64(2), "top_p": np.float32(0.5), "max_tokens": np.int32(3)}
    assert Sampling(**numpy) == Sampling(n=2, top_p=0.5, max_tokens=3)


@pytest.mark.parametrize(
    ("field", "values", "accepted"),
    [
        ("max_tokens", [0, -1, 1.0, "4", True, 10**10], "whole number from 1 to"),
        ("temperature", [-0.1, 101, math.nan, math.inf, "1", True, None, [1], 10**400], "from 0 to 100"),
        ("top_k", [-2, 1.5, "3"], "whole number from -1"),
        ("top_p", [-0.1, 1.1, math.nan, "x"], "from 0 to 1"),
        ("top_p", [0, 0.0], "above 0"),
        ("min_p", [-0.1, 1.1], "from 0 to 1"),
        ("repetition_penalty", [0, -1, 101], "from 0.01 to 100"),
        ("presence_penalty", [-2.1, 2.1], "from -2 to 2"),
        ("frequency_penalty", [-2.1, 2.1], "from -2 to 2"),
        ("ignore_eos", [1, "yes", None], "true or false"),
        ("skip_special_tokens", [1, "yes", None], "true or false"),
        ("logprobs", [-1, 21, True, 1.0], "whole number from 0 to 20"),
        ("n", [0, 1025, None], "whole number from 1 to 1024"),
        ("seed", [2**63, -(2**63) - 1, 0.5, "1"], "whole number from -9223372036854775808"),
        ("stop", [3, None, {"a": 1}], "a list"),
        ("stop_token_ids", [3, "3", None], "a list"),
        ("logit_bias", [3, [1, 2], "5"], "numbers by token id"),
    ],
    ids=str,
)
def test_wrong_values_are_named(field: str, values: list, accepted: str):
    for value in values:
        with pytest.raises(InputError, match=accepted) as error:
            Sampling(**{field: value})
        assert error.value.field == field
        assert error.value.value == value or error.value.value is value


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ({"stop": ["a", ""]}, "stop", ""),
        ({"stop": ""}, "stop", ""),
        ({"stop": ["a", 3]}, "stop", 3),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids", -1),
        ({"stop_token_ids": [1, 0.5]}, "stop_token_ids", 0.5),
        ({"logit_bias": {-1: 0}}, "logit_bias", -1),
        ({"logit_bias": {"x": 0}}, "logit_bias", "x"),
        ({"logit_bias": {1: 101}}, "logit_bias", 101),
        ({"logit_bias": {1: math.inf}}, "logit_bias", math.inf),
        ({"logit_bias": {1: "2"}}, "logit_bias", "2"),
    ],
    ids=str,
)
def test_wrong_parts_are_named(settings: dict, field: str, value: object):
    with pytest.raises(InputError) as error:
        Sampling(**settings)
    assert (error.value.field, error.value.value) == (field, value)


@pytest.mark.parametrize("field", ["logit_bias", "stop_token_ids"])
def test_tokens_outside_the_vocabulary(field: str):
    settings: dict[str, Any] = {field: {63: 1.0} if field == "logit_bias" else [63]}
    request = Sampling(**settings)
    request.check_tokens(64)
    with pytest.raises(InputError, match="0 to 62") as error:
        request.check_tokens(63)
    assert (error.value.field, error.value.value) == (field, 63)


@pytest.mark.parametrize(
    ("settings", "greedy", "penalised"),
    [
        ({"temperature": 1e-6}, True, False),
        ({"temperature": 1e-5}, False, False),
        ({"repetition_penalty": 1.1}, True, True),
        ({"presence_penalty": -0.1}, True, True),
        ({"frequency_penalty": 0.1}, True, True),
        ({"logit_bias": {1: 0.5}}, True, True),
    ],
    ids=str,
)
def test_what_settings_amount_to(settings: dict, greedy: bool, penalised: bool):
    request = Sampling(**settings)
    assert (request.greedy, request.penalised) == (greedy, penalised)
