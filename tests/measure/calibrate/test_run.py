"""The cluster that a calibration makes of times: no program beats its peaks, and the planner reads it."""

import pytest
from tests.measure.calibrate import made
from tests.sizes import full

from partita.measure.calibrate import layers
from partita.specs.cluster import parse_cluster
from partita.specs.toml import cluster_toml

pytestmark = pytest.mark.xdist_group("a fit of calibration")  # a fit is made once


@pytest.fixture(scope="module", params=["8 CPU devices", "a GPU", full("4 TPUs")])
def found(request):
    return made.MACHINES[request.param], *made.calibration(request.param, 1)


def test_the_bound_is_below_every_time(found):
    _, timings, calibration = found
    for key, timed in timings.runs.items():
        assert made.bound_seconds(key, calibration.cluster) < timed.seconds, str(key)


def test_the_file_reads_back_as_the_same_cluster(found, tmp_path):
    _, timings, calibration = found
    path = tmp_path / "here.toml"
    path.write_text(cluster_toml(calibration.cluster), encoding="utf-8")
    read = parse_cluster(str(path))
    assert read.shape == calibration.cluster.shape
    assert read.chip.peak_flops == pytest.approx(calibration.cluster.chip.peak_flops, rel=1e-5)
    assert cluster_toml(read) == path.read_text(encoding="utf-8")
    assert read.profile is not None
    assert read.profile.constants.keys() == calibration.cluster.profile.constants.keys()
    assert read.profile.probe_seconds == timings.probe_seconds


def test_it_ranks_plans_only_where_it_compared_layouts(found):
    here, _, calibration = found
    assert calibration.cluster.profile.compares == (here.chips > 1)


def test_its_region_is_that_of_the_steps(found):
    here, timings, calibration = found
    region = calibration.cluster.profile.region
    steps = [key for key in timings.runs if isinstance(key, layers.Layered)]
    assert list(region) == ["prefill", "decode"]
    for phase, found_in in region.items():
        mine = [step for step in steps if step.phase == phase]
        assert found_in.chips == (here.chips, here.chips)
        assert found_in.chip_names == (calibration.cluster.chip.name,)
        assert set(found_in.layouts) == {str(step.roles) for step in mine}
        sizes = [step.model.parameters for step in mine]
        assert found_in.parameters == (min(sizes), max(sizes))


def test_layouts_and_sizes_are_left_out_whole(found):
    here, timings, calibration = found
    profile = calibration.cluster.profile
    steps = [key for key in timings.runs if isinstance(key, layers.Layered)]
    sizes = {f"{step.phase} of {step.batch} x {step.tokens}" for step in steps}
    layouts = {str(step.roles) for step in steps} if here.chips > 1 else set()
    assert profile.left_out.keys() == sizes | layouts
    assert sum(left.count for left in profile.left_out.values()) == len(steps) * (1 + bool(layouts))
    assert len(profile.residuals) == len(steps)


def test_every_measurement_that_was_fitted_has_a_residual(found):
    here, _, calibration = found
    kinds = {"matmul", "layered"} | ({"collective"} if here.chips > 1 else set())
    assert calibration.residuals.keys() == kinds
    errors = [abs(each.error) for each in calibration.residuals["layered"]]
    assert sorted(errors)[len(errors) // 2] < 0.06
