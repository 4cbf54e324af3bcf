"""Workloads: defaults, and counts that are none."""

from typing import Any

import numpy as np
import pytest

from partita.errors import InputError
from partita.specs import Workload

GIVEN: dict[str, Any] = {"prompt": 2048, "output": 64, "batch": 32}


def test_defaults_follow_from_what_is_given():
    workload = Workload(**GIVEN)
    assert (workload.prefill_batch, workload.context) == (32, 2112)


def test_phases_may_differ_in_batch_and_context_be_fixed():
    workload = Workload(**GIVEN, prefill_batch=1, context=2048)
    assert (workload.batch, workload.prefill_batch, workload.context) == (32, 1, 2048)


def test_it_survives_a_dump_and_is_plain_integers():
    workload = Workload(prompt=2048, output=64, batch=int(np.int64(32)), prefill_batch=4)
    assert Workload.model_validate(workload.model_dump()) == workload
    assert type(Workload(prompt=np.int64(2), output=1, batch=1).prompt) is int  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("field", ["prompt", "output", "batch", "prefill_batch", "context"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True, float("nan")])
def test_a_field_that_is_no_count_is_refused_by_name(field: str, value: Any):
    with pytest.raises(InputError, match="must be a whole number of at least 1") as caught:
        Workload(**{**GIVEN, field: value})
    assert caught.value.field == field
    assert caught.value.value is value


# -- cached prefixes, chunks and samples ----------------------------------------------------------------


def test_by_default_a_prompt_is_new_read_whole_and_answered_once():
    workload = Workload(**GIVEN)
    assert (workload.prefix, workload.chunk, workload.samples) == (0, None, 1)
    assert workload.new_tokens == workload.prompt


def test_a_cached_prefix_leaves_the_rest_of_the_prompt():
    workload = Workload(**GIVEN, prefix=1920, chunk=64)
    assert (workload.new_tokens, workload.chunk, workload.context) == (128, 64, 2112)
    assert Workload.model_validate(workload.model_dump()) == workload


@pytest.mark.parametrize(("samples", "prompts"), [(1, 32), (4, 8), (5, 7), (32, 1), (100, 1)])
def test_samples_share_a_prompt(samples: int, prompts: int):
    assert Workload(**GIVEN, samples=samples).prefill_batch == prompts
    assert Workload(**GIVEN, samples=samples, prefill_batch=3).prefill_batch == 3


@pytest.mark.parametrize("value", [-1, 2048, 4000, 1.5, "8", True, None])
def test_a_prefix_leaves_at_least_one_token(value: Any):
    with pytest.raises(InputError, match="must be a whole number from 0 to 2047") as caught:
        Workload(**GIVEN, prefix=value)
    assert (caught.value.field, caught.value.value) == ("prefix", value)


@pytest.mark.parametrize("field", ["chunk", "samples"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True])
def test_chunks_and_samples_are_counts(field: str, value: Any):
    with pytest.raises(InputError, match="must be a whole number of at least 1") as caught:
        Workload(**{**GIVEN, field: value})
    assert caught.value.field == field


def test_more_chunks_than_can_be_summed_are_refused():
    long = GIVEN | {"prompt": 10**9}
    with pytest.raises(InputError, match="chunk: 999: must be at least 1,000 tokens for this prompt"):
        Workload(**long, chunk=999)
    assert Workload(**long, chunk=1000).chunk == 1000
    assert Workload(**long, prefix=10**9 - 5, chunk=1).chunk == 1
