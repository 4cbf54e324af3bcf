"""The profile of H100 against the 357 served points it was fitted to, seen and unseen."""

import math

import numpy as np
import pytest

from partita.cost.interval import half_width
from partita.measure.fit import fit
from partita.measure.served_points import SCALE, STARTS, published, refit
from partita.specs.catalogue import profile
from partita.specs.profile import TERMS


@pytest.fixture(scope="module")
def found():
    return published()


@pytest.fixture(scope="module")
def again():
    return refit()


def errors(blocks, by):
    """Estimated over measured seconds, less 1."""
    return np.concatenate([block.estimated(by) / block.measured - 1 for block in blocks])


def test_the_points_are_met(found):
    off = np.abs(errors(found, profile("h100")))
    assert len(off) == 357
    assert np.mean(off) < 0.06
    assert np.median(off) < 0.04
    for block in found:
        assert np.mean(np.abs(errors([block], profile("h100")))) < 0.12, block.rows[0].name


def test_no_point_is_faster_than_its_bound(found):
    for block in found:
        for row, bound in zip(block.rows, block.served.bound_seconds(), strict=True):
            assert bound < row.seconds, row.name


def test_the_profile_is_what_the_points_give(again):
    shipped = profile("h100")
    assert shipped.constants.keys() == again.constants.keys()
    for name, constant in again.constants.items():
        for field in ("value", "low", "high", "fixed"):
            value = getattr(constant, field)
            expected = pytest.approx(value, rel=5e-3) if isinstance(value, float) else value
            assert getattr(shipped.constants[name], field) == expected, (name, field)
    np.testing.assert_allclose(shipped.residuals, again.residuals, atol=5e-3)
    np.testing.assert_allclose(shipped.coverage, again.coverage, atol=0.01)
    assert shipped.region == again.region
    assert list(shipped.region) == ["decode"]  # no prefill was timed


def test_tokens_of_its_region_are_of_sequences_in_memory(found):
    """Not of all clients: some would not fit."""
    held = np.concatenate([np.broadcast_to(b.served.sequences, len(b.rows)) for b in found])
    clients = np.array([row.concurrency for block in found for row in block.rows])
    assert np.all(held <= clients)
    tokens = np.array([asked.tokens for block in found for p in block.points for asked in p.asked])
    np.testing.assert_array_equal(tokens, held)
    assert profile("h100").region["decode"].tokens == (held.min(), held.max())


def test_a_model_the_fit_has_not_seen(found):
    points = [point for block in found for point in block.points]
    # Qwen3's are the only 8-bit rows: without them that constant keeps its start, a guess
    for model, most in (("llama3.1-8b", 0.09), ("qwen3-32b", 0.07)):
        rest = [point for point in points if model not in point.groups]
        assert 0 < len(rest) < len(points)
        blind = fit(rest, profile("h100"), STARTS, SCALE).profile
        unseen = [block for block in found if block.rows[0].model == model]
        assert np.mean(np.abs(errors(unseen, blind))) < most


def test_the_interval_holds_nine_tenths(found):
    shipped = profile("h100")
    width = half_width(shipped.residuals, held_out=shipped.held_out)
    assert 0.05 < width < 0.25
    logs = np.abs(np.log1p(errors(found, shipped)))
    assert np.mean(logs <= width) >= 0.9
    assert shipped.held_out == 357  # each once, without its number of chips
    assert sum(left.count for left in shipped.left_out.values()) == 3 * 357  # by model, by engine, by chips
    for name in ("llama3.1-8b", "qwen3-32b", "trtllm", "vllm"):
        assert shipped.left_out[name].median < 0.05
    assert shipped.coverage[-1] >= 0.9


def test_few_constants_of_known_meaning():
    constants = profile("h100").constants
    fitted = [name for name, constant in constants.items() if constant.fixed is None]
    assert sorted(fitted) == sorted(STARTS)
    assert len(fitted) == 6
    for name in fitted:
        constant = constants[name]
        assert constant.low is not None
        assert constant.high is not None
        assert math.log(constant.high / constant.low) < 0.5, f"{name} is not identified"
    assert {name for name in constants if "/" not in name} <= TERMS.keys()


def test_a_constant_that_no_point_depends_on_keeps_its_start(found):
    points = [point for block in found if block.rows[0].weights == "bf16" for point in block.points]
    constant = fit(points, profile("h100"), STARTS, SCALE).profile.constants["int8_matmul_share"]
    assert constant.value == STARTS["int8_matmul_share"]
    assert constant.fixed == "no point depends on it"
