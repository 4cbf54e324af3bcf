"""A profile is found again from times that it made, with the noise of a clock."""

from dataclasses import replace

import numpy as np
import pytest
from tests.measure.calibrate import made
from tests.sizes import full

from partita.cost.phase_estimate import estimated_seconds
from partita.cost.prediction import predict
from partita.cost.setting import Setting
from partita.measure.calibrate import collectives, constants, layers, run
from partita.measure.fit import Measurement
from partita.sharding.roles import parse_layout
from partita.specs.formats import Formats
from partita.specs.profile import Phase
from partita.specs.resolve import resolve_model
from partita.specs.workload import Workload

EIGHT = made.MACHINES["8 CPU devices"]


@pytest.fixture(scope="module", params=["8 CPU devices", "a GPU", "2 x 4 GPUs"])
def found_on(request):
    here = made.MACHINES[request.param]
    on, timed = made.cluster(here), made.timings(here, 1).runs
    points = [run.as_point(key, t.seconds, on) for key, t in timed.items() if run.tells(key, here)]
    return here, constants.fitted(points, constants.template(here), constants.starts(here))


def test_the_constants_are_found_within_their_intervals(found_on):
    here, found = found_on
    true, inside = made.truth(here), []
    for name in found.determined:
        constant = found.profile.constants[name]
        assert constant.fixed is None
        inside.append(constant.low <= true.constants[name].value <= constant.high)
    assert np.mean(inside) >= 0.7  # of 90% intervals, by one seed


def test_links_have_constants_where_there_are_any(found_on):
    here, found = found_on
    links = {name.partition("/")[0] for name in found.profile.constants if "/" in name}
    assert links == {kind for kind, size in here.fabric if size > 1}
    for kind in links:
        assert f"{kind}/all-gather/share" in found.determined
    own = {name for name in found.template.constants if name.endswith("own_share")}
    assert bool(own) == here.shared


def test_what_nothing_tells_is_fixed_where_it_changes_nothing_with_the_reason():
    on, here = made.cluster(EIGHT), EIGHT
    timed = made.timings(here, 1).runs
    points = [run.as_point(key, t.seconds, on) for key, t in timed.items() if isinstance(key, layers.Layered)]
    starts = {"matmul_share": 0.7, "network/all-gather/share": 0.5, "hidden_share": 1e-6}
    found = constants.fitted(points, constants.template(here), starts)
    assert found.determined == ("matmul_share",)
    assert found.profile.constants["network/all-gather/share"].value == 1.0
    assert found.profile.constants["network/all-gather/share"].fixed == "no measurement depends on it"
    hidden = found.profile.constants["hidden_share"]
    assert hidden.value == 0.0
    assert hidden.fixed is not None
    assert "do not tell it" in hidden.fixed


def test_of_a_collective_that_nothing_tells_the_level_has_the_say():
    on, timed = made.cluster(EIGHT), made.timings(EIGHT, 1).runs
    points = [
        run.as_point(key, t.seconds, on)
        for key, t in timed.items()
        if isinstance(key, collectives.Collective) and key.kind != "all-reduce"
    ]
    names = ("switch/message_seconds", "switch/all-reduce/message_seconds")
    true = made.truth(EIGHT)
    others = {name: constant for name, constant in true.constants.items() if name not in names}
    template = true.model_copy(update={"constants": others})
    found = constants.fitted(points, template, dict.fromkeys(names, 2e-5))
    assert found.determined == names[:1]
    start = found.profile.link("message_seconds", "switch", "all-reduce")
    assert start == found.profile.constants[names[0]].value > 0


def test_a_constant_whose_interval_is_all_that_is_plausible_is_not_told():
    """A GPU whose every matmul is held up by arithmetic says nothing of memory."""

    def seconds(profile):
        return 1e-3 / profile.value("matmul_share") + 1e-9 / profile.value("memory_share")

    random = np.random.default_rng(2)
    points = [
        Measurement(str(i), (), 1.3e-3 * float(np.exp(random.normal(0, 0.03))), seconds) for i in range(12)
    ]
    found = constants.fitted(points, constants.template(EIGHT), {"matmul_share": 0.5, "memory_share": 0.5})
    assert found.determined == ("matmul_share",)
    assert found.profile.constants["memory_share"].value == 1.0


@pytest.mark.xdist_group("a fit of calibration")
@pytest.mark.parametrize("seeds", [(1,), full([(1, 2)])], ids=str)
def test_unseen_layouts_are_estimated_and_two_runs_agree(seeds: tuple[int, ...]):
    on, true = made.cluster(EIGHT), made.truth(EIGHT)
    mesh = layers.mesh_of(EIGHT.shape)
    formats = Formats(weights="f32", activations="f32", kv="f32")
    works = []
    for layout in ("ws2d/heads", "ws1d/batch", "wg-xy/batch", "wg-x/heads"):
        roles = parse_layout(layout, mesh.axes)
        sizes: tuple[tuple[Phase, int, int], ...] = (("prefill", 8, 32), ("decode", 16, 100))
        for phase, batch, prompt in sizes:
            workload = Workload(prompt=prompt, output=1, batch=batch, context=prompt + 1)
            setting = Setting(resolve_model("smollm2-135m"), on, mesh, formats, workload)
            works.append(predict(setting, phase, roles).run)
    truth = np.array([estimated_seconds(work, true) for work in works])
    found = []
    for seed in seeds:
        calibrated = made.calibration("8 CPU devices", seed)[1].cluster
        assert calibrated.profile is not None
        moved = [replace(work, setting=replace(work.setting, cluster=calibrated)) for work in works]
        found.append([estimated_seconds(work, calibrated.profile) for work in moved])
    errors = np.abs(np.array(found) / truth - 1)
    assert np.median(errors) < 0.05
    assert np.max(errors) < 0.15
    assert np.max(np.abs(np.array(found) / found[0] - 1)) < 0.15
