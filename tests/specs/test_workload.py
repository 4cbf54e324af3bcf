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
