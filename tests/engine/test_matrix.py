"""Numerics and bytes of every pair of choices: layouts, mesh, batch and the kind of model."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from tests.combinations import (
    CHOICES,
    LAYOUT_CHOICES,
    Case,
    all_pairs,
    covering_cases,
    covering_choices,
    pairs_of,
    whole_row,
)
from tests.engine.bench import STEPS, Bench, replicas_agree


def test_every_pair_of_choices_is_covered():
    held = set()
    for row, pairs in covering_choices():
        for prefill, decode in pairs:
            held |= pairs_of(whole_row(row, prefill, decode))
    assert held >= all_pairs({**CHOICES, **LAYOUT_CHOICES})


@pytest.mark.parametrize(
    "case", covering_cases(), ids=lambda case: f"{case.model.name}-{case.mesh}-{case.batch}"
)
def test_covering_set(case: Case):
    assert case.pairs is not None
    assert Bench(case).run_all() == len(case.pairs) > 0


# -- what the bench itself would notice -------------------------------------------------------------------


def test_replicas_that_differ_in_one_bit_are_noticed():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    parts = [jax.device_put(np.ones(4, np.float32), device) for device in jax.devices()]
    array = jax.make_array_from_single_device_arrays((4,), whole, parts)
    assert replicas_agree(array).tolist() == [1, 1, 1, 1]
    parts[5] = parts[5].at[2].set(np.nextafter(np.float32(1), np.float32(2)))
    with pytest.raises(AssertionError):
        replicas_agree(jax.make_array_from_single_device_arrays((4,), whole, parts))


def test_a_wrong_token_logit_or_cached_key_is_noticed():
    expected = Bench(replace(covering_cases()[0], batch=3)).expected
    tokens, logits = expected.tokens[1].copy(), expected.logits[1][:, None].copy()
    cache = expected.kv.copy()
    expected.compare_step(1, tokens, logits)
    expected.compare_cache(cache, STEPS)

    logits[2, 0, 100] += 2e-4
    with pytest.raises(AssertionError, match="logits of step 1"):
        expected.compare_step(1, tokens, logits)
    tokens[2] += 1
    with pytest.raises(AssertionError):
        expected.compare_step(1, tokens, expected.logits[1][:, None])

    shortest = expected.length.argmin()
    cache[1, 0, shortest, expected.length[shortest] + STEPS] += 1  # behind the last token: nobody reads it
    expected.compare_cache(cache, STEPS)
    cache[1, 0, shortest, expected.length[shortest] + STEPS - 1, 2, 3] += 2e-4
    with pytest.raises(AssertionError, match="the cache is"):
        expected.compare_cache(cache, STEPS)
