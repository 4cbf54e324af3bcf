"""The profile of TPU v5e against the decode steps it was fitted to, and those kept apart."""

import math

import numpy as np
import pytest

from partita.cost.interval import half_width
from partita.measure.refit import measured_runs, refit
from partita.specs.catalogue import profile

NAME = "tpu-v5e"
SEEN, UNSEEN = measured_runs(NAME), measured_runs(NAME, "unseen")


def off(run):
    """Estimated over measured seconds, less 1."""
    return run.estimated_seconds(profile(NAME)) / run.seconds - 1


@pytest.mark.parametrize("run", SEEN + UNSEEN, ids=lambda run: f"{run.name}, {run.predictions[0].run.tokens}")
def test_no_step_is_faster_than_its_bound(run):
    assert run.bound_seconds < run.seconds


def test_steps_the_fit_has_not_seen():
    assert (len(SEEN), len(UNSEEN)) == (3, 15)
    errors = np.abs([off(run) for run in UNSEEN])
    assert np.mean(errors) < 0.07
    assert np.max(errors) < 0.18


def test_the_interval_comes_from_them():
    shipped = profile(NAME)
    logs = [  # twice the context that was fitted to is half as wide again
        math.log(run.seconds / run.estimated_seconds(shipped))
        / {2048: 1, 4096: 1.5}[run.predictions[0].run.tokens]
        for run in UNSEEN
    ]
    np.testing.assert_allclose(shipped.residuals, logs, atol=2e-3)
    assert half_width(shipped.residuals) == pytest.approx(np.max(np.abs(logs)), abs=2e-3)


def test_the_profile_is_what_the_steps_give():
    shipped, again = profile(NAME), refit(NAME)
    assert shipped.constants.keys() == again.constants.keys()
    for name, constant in again.constants.items():
        assert shipped.constants[name].value == pytest.approx(constant.value, rel=2e-3), name
        assert shipped.constants[name].fixed == constant.fixed
    assert shipped.region == again.region
    assert list(shipped.region) == ["decode"]


def test_the_better_layout_flips_between_64_and_128_sequences():
    """As measured: 68.7 against 58.4 steps a second at 64, 39.3 against 50.2 at 128."""
    seconds = {
        (run.group, run.batch): run.estimated_seconds(profile(NAME))
        for run in SEEN + UNSEEN
        if run.predictions[0].run.tokens == 2048
    }
    assert seconds["TP16", 64] < seconds["DP2 x TP8", 64]
    assert seconds["TP16", 128] > seconds["DP2 x TP8", 128]


def test_what_was_measured_is_no_extrapolation():
    for run in SEEN:
        estimate = run.predictions[0].estimate
        assert estimate is not None
        assert estimate.interval.extrapolated == ()
