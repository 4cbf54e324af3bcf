"""The layouts to be timed against every combination of roles on a mesh, each priced alone."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest
from tests.planner.test_brute_force import ATTENTION, WEIGHTS, with_profile
from tests.planner.test_brute_force import a_case as drawn

from partita.cost.prediction import Prediction, Setting, predict
from partita.errors import InputError
from partita.planner.layouts_to_time import layouts_to_time, mesh_of
from partita.planner.pair import Basis, step_seconds
from partita.sharding.mesh import Mesh
from partita.sharding.roles import AttentionRole, Roles, WeightRole
from partita.specs import Cluster, PhysicalAxis, Workload

MESH = Mesh.of((2, 2))
PHASES = ("prefill", "decode")
SEEDS = (0, 1, 3, 14, 26, 29)
"""In the last three the best step after the prompt is in another layout than the best on a long cache."""
BASES: tuple[Basis, ...] = ("bound", "estimate")


@cache
def a_setting(seed: int) -> Setting:
    """A drawn model on 2 x 2 chips with a drawn profile; the cache is not just the prompt and a token."""
    case = with_profile(drawn(seed), seed)
    profile = case.cluster.profile
    assert profile is not None
    kind = "torus" if seed % 2 else "switch"
    constants = {
        name.replace("torus", kind).replace("switch", kind): constant
        for name, constant in profile.constants.items()
        if "hop" not in name
    }
    profile = profile.model_copy(update={"constants": constants})
    axes = tuple(
        PhysicalAxis(kind=kind, size=2, links=2 if kind == "torus" else 1, link_bandwidth=bandwidth)
        for bandwidth in (1e10, 3e10)
    )
    chip = case.cluster.chip.model_copy(update={"hbm_bytes": 10**12})
    cluster = Cluster(name="drawn", chip=chip, fabric=axes, profile=profile)
    batch, prompt, context = ((1, 48, 20), (4, 48, 49), (6, 1, 200_000))[seed % 3]
    workload = Workload(prompt=prompt, output=1, batch=batch, context=context)
    return Setting(case.model, cluster, MESH, case.formats, workload)


@cache
def every(seed: int, phase) -> tuple[Prediction, ...]:
    """The predictions of every combination of roles."""
    weights: list[WeightRole] = [role for roles in WEIGHTS.values() for role in roles]

    def roles(w: tuple[WeightRole, ...], a: tuple[AttentionRole, ...]) -> Roles:
        return Roles("", "", (("x", w[0]), ("y", w[1])), (("x", a[0]), ("y", a[1])))

    return tuple(
        predict(a_setting(seed), phase, roles(w, a))
        for w in itertools.product(weights, repeat=2)
        for a in itertools.product(ATTENTION, repeat=2)
    )


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_is_the_best_of_all(seed: int, phase, basis: Basis):
    best = min(step_seconds(each, basis) for each in every(seed, phase) if each.fits)
    found = layouts_to_time(a_setting(seed), phase, 8, basis)
    assert best * (1 - 1e-9) <= step_seconds(found[0], basis) <= best * 1.001


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("seed", SEEDS)
def test_they_ascend_from_the_best_to_bad_ones_and_differ(seed: int, phase, basis: Basis):
    found = layouts_to_time(a_setting(seed), phase, 12, basis)
    seconds = [step_seconds(each, basis) for each in found]
    assert 1 <= len(found) <= 12  # where the host takes most of a step, all may be alike
    assert all(later > 1.01 * before for before, later in itertools.pairwise(seconds))
    assert seconds[-1] <= 6 * seconds[0]
    assert len({each.layout.roles for each in found}) == len(found)
    for each in found:
        assert (each.phase, each.setting.mesh, each.fits) == (phase, MESH, True)
        again = predict(a_setting(seed), phase, each.layout.roles)
        assert step_seconds(again, basis) == step_seconds(each, basis)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_no_more_are_given_than_asked_for(count: int):
    found = layouts_to_time(a_setting(2), "decode", count, "estimate")
    assert len(found) == count
    assert found[0] == layouts_to_time(a_setting(2), "decode", 12, "estimate")[0]


def test_a_quarter_of_the_others_come_from_directly_behind_the_best():
    few, many, all_ = (layouts_to_time(a_setting(2), "decode", count, "bound") for count in (3, 9, 10_000))
    roles = [[each.layout.roles for each in found] for found in (few, many, all_)]
    assert len(all_) > 20
    assert roles[1][:3] == roles[2][:3]
    assert roles[1][3] != roles[2][3]
    assert (roles[0][0], roles[0][-1]) == (roles[1][0], roles[1][-1]) == (roles[2][0], roles[2][-1])


def test_layouts_that_do_not_fit_are_left_out():
    """A chip with room for half the weights and no more."""
    setting = a_setting(0)
    whole = max(each.memory_bytes["weights"] for each in every(0, "decode"))
    total = min(each.memory_bytes["total"] for each in every(0, "decode"))
    chip = setting.cluster.chip.model_copy(update={"hbm_bytes": max(total, whole // 2)})
    small = replace(setting, cluster=setting.cluster.model_copy(update={"chip": chip}))
    found = layouts_to_time(small, "decode", 10, "bound")
    assert found
    assert all(each.fits for each in found)
    fits = [p for each in every(0, "decode") if (p := predict(small, "decode", each.layout.roles)).fits]
    assert 0 < len(fits) < len(every(0, "decode"))
    assert found[0].step_seconds == pytest.approx(min(each.step_seconds for each in fits), rel=1e-9)


def test_a_model_that_fits_nowhere_has_none():
    setting = a_setting(0)
    chip = setting.cluster.chip.model_copy(update={"hbm_bytes": 1000})
    small = replace(setting, cluster=setting.cluster.model_copy(update={"chip": chip}))
    assert layouts_to_time(small, "decode", 10) == layouts_to_time(small, "prefill", 10) == ()


def test_without_a_profile_layouts_go_by_the_bound_and_no_estimate_can_be_asked_for():
    setting = a_setting(0)
    bare = replace(setting, cluster=setting.cluster.model_copy(update={"profile": None}))
    assert [each.layout for each in layouts_to_time(bare, "decode", 5)] == [
        each.layout for each in layouts_to_time(setting, "decode", 5, "bound")
    ]
    with pytest.raises(InputError, match="no efficiency profile") as caught:
        layouts_to_time(bare, "decode", 5, "estimate")
    assert caught.value.field == "by"


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [((8,), (2, 2, 2)), ((6,), (2, 3)), ((1,), (1,)), ((1, 1), (1,)), ((4, 2), (4, 2)), ((1, 4), (2, 2))],
)
def test_the_mesh_of_a_shape_has_axes_to_differ_in(shape: tuple[int, ...], sizes: tuple[int, ...]):
    assert mesh_of(shape).sizes == sizes
