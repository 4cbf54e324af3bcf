"""The fit finds the constants that times were made with, and says how sure it is.

Held-out errors are those of fits that had not seen a setting; and how often intervals made without it hold.
"""

import math

import numpy as np
import pytest

from partita.cost.interval import Asked
from partita.cost.phase_estimate import EstimateClock
from partita.measure.fit import (
    Fold,
    Measurement,
    coverages,
    fit,
    leave_out,
    region_of,
    with_apart,
    with_errors,
    with_held_out,
)
from partita.measure.refit import measured_runs
from partita.specs import Constant, Profile, Region

TRUE = {"matmul_share": 0.6, "torus/share": 0.4, "torus/message_seconds": 4e-6}
STARTS = {"matmul_share": 0.9, "torus/share": 0.9, "torus/message_seconds": 1e-6}
TEMPLATE = Profile(
    name="made",
    source="here",
    constants={"memory_share": Constant(value=0.8, fixed="as the times were made")},
)

ASKED = Asked(
    parameters=8e9,
    chips=8,
    tokens=64,
    context=100,
    phase="decode",
    layout="ws1d/heads",
    weights="bf16",
    activations="bf16",
    chip="h100",
)


REGION = Region(
    parameters=(8e9, 8e9),
    chips=(8, 8),
    tokens=(64, 64),
    context=(100, 100),
    layouts=("ws1d/heads",),
    weights=("bf16",),
    activations=("bf16",),
    chip_names=("h100",),
)
"""Of `ASKED`."""


def with_constants(values: dict[str, float]) -> Profile:
    fixed = {name: Constant(value=value, fixed="made") for name, value in values.items()}
    return TEMPLATE.model_copy(update={"constants": {**TEMPLATE.constants, **fixed}})


def points(noise: float, outliers: int = 0) -> list[Measurement]:
    """Made times for the runs that the TPU profile has measured ones of."""
    random, found = np.random.default_rng(1), []
    for i, run in enumerate(measured_runs("tpu-v4")):
        seconds = run.estimated_seconds(with_constants(TRUE)) * math.exp(random.normal(0, noise))
        seconds *= 1.5 if i < outliers else 1
        found.append(Measurement(run.name, (run.group,), seconds, run.estimated_seconds))
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


# -- held-out errors ------------------------------------------------------------------------------------


def test_errors_are_of_fits_that_had_not_seen_the_setting():
    """One setting is twice as slow as all others say."""
    made = {name: Constant(value=value, fixed="made") for name, value in TRUE.items()}
    profile = TEMPLATE.model_copy(update={"constants": {**TEMPLATE.constants, **made}})
    points = []
    for run in measured_runs("tpu-v4"):
        seconds = run.estimated_seconds(profile) * (2 if run.group == "table 2" else 1)
        points.append(Measurement(run.name, (run.group,), seconds, run.estimated_seconds, run.point.asked))
    found = leave_out(points, TEMPLATE, STARTS)
    assert [left.group for left in found] == sorted({run.group for run in measured_runs("tpu-v4")})
    assert sum(len(left.points) for left in found) == len(points)
    (slow,) = (left for left in found if left.group == "table 2")
    np.testing.assert_allclose(slow.errors, math.log(2), rtol=0.02)
    (other,) = (left for left in found if left.group.startswith("MT-NLG"))
    assert other.region["decode"].parameters == (540356640768, 540356640768)


def left(group: str, errors: list[float], chips: float = 8, grouping: int = 0) -> Fold:
    asked = (Asked(**{**vars(ASKED), "chips": chips}),)
    points = tuple(Measurement("", (group,), 1.0, lambda profile: 1.0, asked) for _ in errors)
    return Fold(group, points, {"decode": REGION}, np.array(errors), grouping)


def test_a_setting_is_judged_by_the_errors_of_the_others():
    small, large = [0.01 * i for i in range(1, 20)], [0.3] * 19
    found = left("a", small), left("b", large)
    # all of a lie within 0.3, none of b within 0.19
    assert coverages(found) == (0.5,) * 5


def test_an_interval_outside_the_others_region_is_wider():
    small = [0.01 * i for i in range(1, 20)]
    inside = left("a", small), left("b", [0.25] * 19)
    outside = left("a", small), left("b", [0.25] * 19, chips=16)  # half as wide again: 0.27 at 90%
    assert coverages(inside)[-1] == 0.5
    assert coverages(outside)[-1] == 1


def test_a_region_is_what_points_span():
    points = (*left("a", [0.1], chips=4).points, *left("b", [0.1], chips=16).points)
    prefill = Asked(**{**vars(ASKED), "phase": "prefill", "tokens": 512, "weights": "int8"})
    request = Measurement("", (), 1.0, lambda profile: 1.0, (ASKED, prefill))
    found = region_of([*points, request])
    assert list(found) == ["prefill", "decode"]
    assert (found["decode"].chips, found["prefill"].chips) == ((4, 16), (8, 8))
    assert (found["decode"].tokens, found["prefill"].tokens) == ((64, 64), (512, 512))
    assert (found["decode"].weights, found["prefill"].weights) == (("bf16",), ("int8",))
    assert (found["decode"].layouts, found["decode"].chip_names) == (("ws1d/heads",), ("h100",))
    assert region_of(()) == {}


def test_of_several_groupings_the_one_with_the_largest_errors_gives_the_interval():
    """The same 12 errors by model, of which one group is estimated badly by engine."""
    model = left("a", [0.1] * 6), left("b", [0.1] * 6)
    engine = left("c", [0.1] * 6, grouping=1), left("d", [0.3] * 6, grouping=1)
    found = with_held_out(TEMPLATE, (*model, *engine))
    assert found.residuals == (*[0.1] * 6, *[0.3] * 6)
    assert list(found.left_out) == ["a", "b", "c", "d"]
    assert found.left_out["a"].inside == 1  # by b alone: at least 0.25 of so few
    assert found.left_out["d"].inside == 0  # by c alone
    assert found.coverage[-1] == 0.5


def test_each_way_leaves_out_its_own():
    """Two models on two engines: 4 settings, and every point left out twice."""
    points = [
        Measurement(
            run.name, (run.group, f"batch {run.batch}"), run.seconds, run.estimated_seconds, run.point.asked
        )
        for run in measured_runs("tpu-v4")
        if run.batch in (64, 128) and run.group != "table 2"
    ]
    found = leave_out(points, TEMPLATE, {"torus/share": 0.9})
    groups = sorted({point.groups[0] for point in points})
    assert [(each.grouping, each.group) for each in found] == [
        *((0, group) for group in groups),
        (1, "batch 128"),
        (1, "batch 64"),
    ]
    assert sum(len(each.points) for each in found) == 2 * len(points)


def test_errors_kept_apart_are_of_the_region():
    """Half as wide again on twice the chips, so such an error counts for two thirds."""
    profile = TEMPLATE.model_copy(update={"region": {"decode": REGION}})
    points = [
        Measurement("", (), 1.3, lambda profile: 1.0, (Asked(**{**vars(ASKED), "chips": chips}),))
        for chips in (8, 16)
    ]
    assert with_apart(profile, points).residuals == pytest.approx((math.log(1.3), math.log(1.3) / 1.5))


def test_many_errors_are_kept_as_sizes_at_equal_steps():
    few, many = np.array([0.1, -0.2]), np.linspace(-1, 0.5, 301)
    assert with_errors(TEMPLATE, few).residuals == (0.1, -0.2)
    assert with_errors(TEMPLATE, few).held_out is None
    found = with_errors(TEMPLATE, many)
    assert found.held_out == 301
    assert len(found.residuals) == 21
    assert found.residuals[0] == 0
    assert found.residuals[-1] == 1
    assert found.residuals[10] == pytest.approx(np.median(np.abs(many)))


def test_a_profile_says_it_by_setting():
    found = with_held_out(TEMPLATE, (left("a", [0.1] * 9), left("b", [-0.3, 0.1, 0.1])))
    assert found.residuals == (*[0.1] * 9, -0.3, 0.1, 0.1)
    assert found.left_out["a"].model_dump() == {"count": 9, "median": 0.1, "worst": 0.1, "inside": 1}
    assert found.left_out["b"].worst == 0.3
    assert found.left_out["b"].inside == pytest.approx(2 / 3)
    assert found.coverage[-1] == pytest.approx(11 / 12)
