"""The fit finds the constants that times were made with, and says how sure it is."""

import math

import numpy as np
import pytest

from partita.cost.phase_estimate import EstimateClock
from partita.measure.fit import Point, fit
from partita.measure.refit import measured_runs
from partita.specs import Constant, Profile

TRUE = {"matmul_share": 0.6, "torus/share": 0.4, "torus/message_seconds": 4e-6}
STARTS = {"matmul_share": 0.9, "torus/share": 0.9, "torus/message_seconds": 1e-6}
TEMPLATE = Profile(
    name="made",
    source="here",
    constants={"memory_share": Constant(value=0.8, fixed="as the times were made")},
)


def with_constants(values: dict[str, float]) -> Profile:
    fixed = {name: Constant(value=value, fixed="made") for name, value in values.items()}
    return TEMPLATE.model_copy(update={"constants": {**TEMPLATE.constants, **fixed}})


def points(noise: float, outliers: int = 0) -> list[Point]:
    """Made times for the runs that the TPU profile has measured ones of."""
    random, found = np.random.default_rng(1), []
    for i, run in enumerate(measured_runs("tpu-v4")):
        seconds = run.estimated_seconds(with_constants(TRUE)) * math.exp(random.normal(0, noise))
        seconds *= 1.5 if i < outliers else 1
        found.append(Point(run.name, (run.group,), seconds, run.estimated_seconds))
    return found


def test_exact_times_give_the_constants_back():
    found = fit(points(0.0), TEMPLATE, STARTS).profile
    for name, value in TRUE.items():
        assert found.constants[name].value == pytest.approx(value, rel=1e-3)
    assert found.constants["memory_share"] == TEMPLATE.constants["memory_share"]


def test_noise_leaves_them_within_their_confidence_intervals():
    found = fit(points(0.02), TEMPLATE, STARTS).profile
    for name, value in TRUE.items():
        constant = found.constants[name]
        assert constant.fixed is None
        assert constant.low is not None
        assert constant.high is not None
        assert constant.low < value < constant.high < 2 * constant.low


def test_a_few_wrong_times_move_them_little():
    found = fit(points(0.01, outliers=2), TEMPLATE, STARTS)
    for name, value in TRUE.items():
        assert found.profile.constants[name].value == pytest.approx(value, rel=0.15)
    assert sorted(np.abs(found.errors))[-3] < 0.1 < sorted(np.abs(found.errors))[-2]


def test_errors_are_logarithms_of_measured_over_estimated():
    some = points(0.02)
    found = fit(some, TEMPLATE, STARTS)
    expected = [math.log(point.seconds / point.seconds_by(found.profile)) for point in some]
    np.testing.assert_allclose(found.errors, expected, atol=1e-9)


def test_too_few_points_are_refused():
    with pytest.raises(ValueError, match="identify"):
        fit(points(0.0)[:3], TEMPLATE, STARTS)


def test_an_estimate_is_what_the_clock_says():
    """What the fit times is what a prediction on a cluster with that profile says."""
    profile = with_constants(TRUE)
    for run in measured_runs("tpu-v4")[:6]:
        (prediction,) = run.predictions
        clock = EstimateClock(prediction.setting, profile)
        assert run.estimated_seconds(profile) == prediction.run.total_seconds(clock)
