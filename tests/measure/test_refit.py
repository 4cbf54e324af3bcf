"""Published profiles: the fit gives what is shipped, and what is shipped meets the published times."""

from dataclasses import replace

import numpy as np
import pytest

from partita.cost.interval import half_width
from partita.cost.phase_estimate import estimated_seconds
from partita.measure.fit import fit
from partita.measure.refit import STARTS, MeasuredRun, measured_runs, refit
from partita.report.reproduce.published import published
from partita.specs import Formats
from partita.specs.catalogue import profile


@pytest.fixture(scope="module", params=["tpu-v4", "a100"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def runs(name: str) -> tuple[MeasuredRun, ...]:
    return measured_runs(name)


def test_a_fit_from_round_guesses_gives_the_shipped_profile(name: str):
    shipped, again = profile(name), refit(name)
    assert again.constants.keys() == shipped.constants.keys()
    for key, constant in again.constants.items():
        mine = shipped.constants[key]
        assert (constant.fixed is None) == (mine.fixed is None) == (key in STARTS[name])
        assert mine.value == pytest.approx(constant.value, rel=0.01)
        for bound in ("low", "high"):
            if constant.fixed is None:
                assert getattr(mine, bound) == pytest.approx(getattr(constant, bound), rel=0.02)
    np.testing.assert_allclose(shipped.residuals, again.residuals, atol=2e-3)
    np.testing.assert_allclose(shipped.coverage, again.coverage, atol=0.04)  # one run more or less
    assert shipped.region == again.region


@pytest.mark.parametrize(("name", "median", "worst"), [("tpu-v4", 0.03, 0.12), ("a100", 0.04, 0.20)])
def test_published_times_are_met(name: str, median: float, worst: float):
    errors = [abs(run.estimated_seconds(profile(name)) / run.seconds - 1) for run in measured_runs(name)]
    assert np.median(errors) <= median
    assert max(errors) <= worst


def test_no_published_time_is_below_its_bound(runs: tuple[MeasuredRun, ...]):
    for run in runs:
        assert run.bound_seconds < run.seconds, run.name
        for prediction in run.predictions:
            assert prediction.estimate is not None
            assert prediction.estimate.total_seconds >= prediction.total_seconds


def test_the_format_of_partial_sums_is_that_of_the_runtime(runs: tuple[MeasuredRun, ...]):
    """Whatever a plan asks of another runtime, so also by default: the estimate is that which was fitted."""
    for run in runs:
        for fitted in run.predictions:
            wide = fitted.setting.formats.model_copy(update={"reduce": Formats().reduce})
            assert wide != fitted.setting.formats
            asked = fitted.priced_in(replace(fitted.setting, formats=wide))
            assert asked.estimate is not None
            assert fitted.estimate is not None
            # an estimate is held above its own bound, which is of sums as asked
            expected = max(fitted.estimate.total_seconds, asked.total_seconds)
            assert asked.estimate.total_seconds == pytest.approx(expected, rel=1e-9)


def test_without_it_partial_sums_travel_as_asked(name: str, runs: tuple[MeasuredRun, ...]):
    unsaid = profile(name).model_copy(update={"reduce": None})
    (fitted, *_) = runs[-1].predictions
    wide = fitted.setting.formats.model_copy(update={"reduce": "f32"})
    other = fitted.priced_in(replace(fitted.setting, formats=wide))
    assert estimated_seconds(other.run, unsaid) > 1.02 * estimated_seconds(fitted.run, unsaid)


def test_few_constants_are_fitted_to_many_times(name: str, runs: tuple[MeasuredRun, ...]):
    fitted = [constant for constant in profile(name).constants.values() if constant.fixed is None]
    assert len(fitted) <= 7
    assert len(runs) >= 6 * len(fitted)
    for constant in fitted:
        assert constant.low is not None
        assert constant.high is not None
        assert constant.high < 6 * constant.low


def test_times_left_out_lie_in_the_intervals(name: str):
    """Each run by a fit without its table, and in an interval made without it."""
    shipped = profile(name)
    assert len(shipped.residuals) == len(measured_runs(name))
    assert np.mean(np.abs(shipped.residuals) <= half_width(shipped.residuals)) >= 0.9
    assert np.median(np.abs(shipped.residuals)) < 0.05
    assert shipped.coverage[-1] >= 0.88
    assert list(shipped.coverage) == sorted(shipped.coverage)


def test_another_model_is_predicted():
    """Fitted to PaLM alone, the times of Megatron-Turing NLG: another block, heads and depth."""
    found, known = measured_runs("tpu-v4"), profile("tpu-v4")
    palm = [run.point for run in found if "mt-nlg" not in run.name]
    fixed = {key: constant for key, constant in known.constants.items() if constant.fixed is not None}
    fitted = fit(palm, known.model_copy(update={"constants": fixed}), STARTS["tpu-v4"]).profile
    errors = [abs(run.estimated_seconds(fitted) / run.seconds - 1) for run in found if "mt-nlg" in run.name]
    assert len(errors) == 9
    assert np.median(errors) < 0.04
    assert max(errors) < 0.12


# -- the data are those that the paper's tables show -----------------------------------------------------


def test_palm_and_megatron_are_measured_as_published():
    found = {run.name: run.seconds for run in measured_runs("tpu-v4")}
    for row in published("table2").rows:
        name = f"palm-540b {row['ffn']}/{row['attention']} {row['phase']}, batch {row['batch']}"
        assert found.pop(name) == row["seconds"]
    for row in published("ours-20-8").rows:
        for phase in ("prefill", "decode"):
            name = f"palm-540b ws2d/heads {phase}, batch {row['batch']}"
            assert found.pop(name) == pytest.approx(row[f"{phase}_ms"] / 1e3)
    for row in published("ours-megatron-20-8").rows:
        name = f"mt-nlg-530b ws2d/heads request, batch {row['batch']}"
        assert found.pop(name) == pytest.approx(row["total_ms"] / 1e3)
    assert not found


def test_fastertransformer_is_measured_as_published():
    times = {(run.group, run.batch): run.seconds for run in measured_runs("a100")}
    columns = {"TP16": "tp16_ms", "TP32": "tp32_ms", "PP3/TP8": "pp3_tp8_ms"}
    rows = published("fastertransformer-20-8").rows
    assert len(times) == 3 * len(rows)
    for row in rows:
        for group, column in columns.items():
            assert times[group, row["batch"]] == pytest.approx(row[column] / 1e3)
