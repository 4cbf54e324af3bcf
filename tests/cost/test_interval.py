"""Intervals: their width from held-out errors, wider outside the region, and what they say of it."""

import math

import numpy as np
import pytest

from partita.cost.interval import Asked, around, half_width, interval
from partita.specs import Constant, Profile, Region

REGION = Region(
    parameters=(1e9, 8e9),
    chips=(8, 64),
    tokens=(1, 4096),
    context=(128, 2048),
    layouts=("ws2d/batch",),
    weights=("bf16",),
    activations=("bf16",),
    chip_names=("h100",),
)
PROFILE = Profile(
    name="made",
    source="here",
    constants={"matmul_share": Constant(value=0.5, fixed="given")},
    region={"decode": REGION},
    residuals=tuple(0.01 * i for i in range(-10, 10)),
)
INSIDE = Asked(
    parameters=4e9,
    chips=16,
    tokens=64,
    context=1000,
    phase="decode",
    layout="ws2d/batch",
    weights="bf16",
    activations="bf16",
    chip="h100",
)


def asked(**other: object) -> Asked:
    return Asked(**{**vars(INSIDE), **other})  # type: ignore[arg-type]


def width(**other: object) -> float:
    found = interval(PROFILE, asked(**other))
    assert found.low * found.high == pytest.approx(1)
    return math.log(found.high)


def test_inside_it_is_as_wide_as_held_out_errors():
    assert interval(PROFILE, INSIDE).extrapolated == ()
    assert width() == pytest.approx(0.09)  # of 20 errors of up to 0.1 the 19th smallest


@pytest.mark.parametrize(
    ("other", "doublings", "sentence"),
    [
        ({"parameters": 16e9}, 1, "parameters of the model, fitted to"),
        ({"parameters": 2.5e8}, 2, "parameters of the model, fitted to"),
        ({"chips": 256}, 2, "chips, fitted to"),
        ({"tokens": 16384}, 2, "tokens a step, fitted to"),
        ({"context": 32}, 2, "positions of context, fitted to"),
        ({"phase": "prefill"}, 1, "phase prefill, fitted to decode"),
        ({"layout": "ws1d/heads"}, 1, "layout ws1d/heads, fitted to ws2d/batch"),
        ({"weights": "int8"}, 1, "int8 weights, fitted to bf16"),
        ({"activations": "f32"}, 1, "f32 activations, fitted to bf16"),
        ({"chip": "h200"}, 1, "chip h200, fitted to h100"),
    ],
    ids=str,
)
def test_outside_it_is_wider_by_half_a_doubling_and_says_why(other: dict, doublings: int, sentence: str):
    assert width(**other) == pytest.approx(0.09 * (1 + doublings / 2))
    (said,) = interval(PROFILE, asked(**other)).extrapolated
    assert sentence in said


def test_several_quantities_outside_add_up():
    assert width(chips=128, phase="prefill") == pytest.approx(0.09 * 2)
    assert len(interval(PROFILE, asked(chips=128, phase="prefill")).extrapolated) == 2


def test_only_the_phase_that_is_asked_for_counts():
    """What is within the region of one phase may lie far outside that of another."""
    prefill = REGION.model_copy(update={"tokens": (1, 2**20), "layouts": ("wg-xyz/batch",)})
    both = PROFILE.model_copy(update={"region": {"decode": REGION, "prefill": prefill}})
    given = asked(tokens=8192, layout="wg-xyz/batch")
    assert len(interval(both, given).extrapolated) == 2
    assert interval(both, asked(tokens=8192, layout="wg-xyz/batch", phase="prefill")).extrapolated == ()


def test_of_a_phase_not_seen_tokens_and_context_say_nothing_but_all_else_does():
    more = {"phase": "prefill", "tokens": 2**20, "context": 10**6}
    assert width(**more) == pytest.approx(0.09 * 1.5)
    assert width(**more, parameters=16e9, weights="int8") == pytest.approx(0.09 * 2.5)


def test_a_region_that_is_not_said_is_said_so():
    unsaid = PROFILE.model_copy(update={"region": {}})
    assert interval(unsaid, INSIDE).extrapolated == ("what it was fitted to is not said",)


def test_no_interval_reaches_below_the_bound():
    found = interval(PROFILE, INSIDE)
    assert around(2.0, 1.0, found) == pytest.approx((2 * found.low, 2 * found.high))
    assert around(2.0, 1.99, found) == pytest.approx((1.99, 2 * found.high))


def test_nine_in_ten_new_errors_lie_within():
    """The guarantee of split conformal prediction, over errors of a skewed and heavy-tailed kind."""
    random = np.random.default_rng(0)
    draws = random.standard_t(3, size=(4000, 31)) * 0.05 + 0.02
    inside = [abs(draw[-1]) <= half_width(draw[:-1]) for draw in draws]
    assert 0.88 < np.mean(inside) < 0.95


def test_few_errors_give_a_wide_interval():
    assert half_width(()) == 0.5
    assert half_width((0.01, -0.02)) == 0.25
    assert half_width((0.4,)) == 0.8
    assert half_width([0.1] * 8) == 0.25
    assert half_width([0.1] * 9) == 0.1


def test_sizes_at_equal_steps_stand_for_all_errors():
    """The sizes of 700 errors every 5%, against all of them."""
    errors = (np.random.default_rng(1).standard_t(3, size=700) * 0.05).tolist()
    steps = np.quantile(np.abs(errors), np.linspace(0, 1, 21)).tolist()
    for coverage in (0.5, 0.8, 0.9):
        all_of_them = half_width(errors, coverage)
        assert half_width(steps, coverage, held_out=700) == pytest.approx(all_of_them, rel=0.015)


def test_a_lower_coverage_is_a_narrower_interval():
    errors = [0.01 * i for i in range(1, 20)]
    assert [half_width(errors, p) for p in (0.5, 0.75, 0.95)] == pytest.approx([0.1, 0.15, 0.19])


def test_an_interval_as_wide_as_can_be_is_still_one():
    """However far off the errors were that somebody wrote down."""
    for residuals in ((1000.0,) * 20, (-700.0, 700.0), (1e300, 1e300)):
        found = interval(Profile(name="made", source="here", constants={}, residuals=residuals), asked())
        assert 0 < found.low < 1e-6
        assert 1e6 < found.high < math.inf
