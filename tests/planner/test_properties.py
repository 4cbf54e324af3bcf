"""What holds for every model and cluster: more of anything is never worse, and nothing is counted twice."""

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import Phase as Stage
from hypothesis import strategies as st
from tests.planner.drawn import a_case, changed
from tests.planner.pairs import NAMED, phase_of
from tests.sizes import many

from partita.advice.sensitivity import changed_cluster
from partita.cost.prediction import Prediction, Setting, predict
from partita.errors import InputError
from partita.planner import Case, Plan, best_of
from partita.planner.pair import OBJECTIVES
from partita.sharding.mesh import AXES, Mesh
from partita.sharding.roles import AttentionRole, Roles, WeightRole
from partita.specs.profile import Phase
from partita.specs.units import parse_duration

FEW = settings(
    max_examples=many(8),
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    phases=[Stage.explicit, Stage.reuse, Stage.generate],  # a smaller seed is no simpler
)
SEEDS = st.integers(0, 10**6)
MORE = st.floats(0.01, 20)
PHASES = st.sampled_from(["prefill", "decode"])
CLOSE = 1 + 1e-9

WEIGHTS: tuple[WeightRole, ...] = ("e", "f", "e-gathered", "f-gathered", "replica")
ATTENTION: tuple[AttentionRole, ...] = ("heads", "batch", "context", "none")


def planned(case: Case) -> Plan | None:
    """None where nothing fits, or keeps the limits."""
    try:
        return best_of([case], top=1)
    except InputError:
        return None


def a_setting(seed: int, *, staged: bool = False) -> Setting:
    """A setting of a case drawn at random, on the mesh of the machine (of one stage)."""
    case = a_case(seed, chunked=seed % 3 == 0, staged=staged)
    draw = random.Random(seed)
    workload = case.workload.resized(batch=draw.choice([1, 3, 8, 64]), prefill_batch=draw.choice([1, 4]))
    shape = list(case.cluster.shape)
    first = next((i for i, size in enumerate(shape) if size > 1), 0)
    shape[first] //= case.stages
    mesh = Mesh.of(tuple(shape))
    return Setting(case.model, case.cluster, mesh, case.formats, workload, case.stages)


def some_roles(seed: int, mesh: Mesh) -> Roles:
    draw = random.Random(seed)
    weights: tuple[tuple[str, WeightRole], ...] = tuple((axis, draw.choice(WEIGHTS)) for axis in mesh.axes)
    return Roles("drawn", "drawn", weights, tuple((axis, draw.choice(ATTENTION)) for axis in mesh.axes))


# -- more of anything -------------------------------------------------------------------------------------


@settings(FEW, max_examples=many(4))
@given(SEEDS, st.sampled_from(["links", "memory", "compute", "capacity"]), MORE, st.sampled_from(OBJECTIVES))
def test_a_better_chip_never_has_a_worse_plan(seed: int, what: str, more: float, objective):
    case = a_case(seed, objective=objective)
    plan = planned(case)
    assume(plan is not None)
    assert plan is not None
    better = planned(changed(case, clusters=(changed_cluster(case.cluster, what, more),)))
    assert better is not None
    before, after = plan.chosen.score(objective), better.chosen.score(objective)
    assert after <= before + abs(before) * 1e-9


@FEW
@given(SEEDS, PHASES, st.sampled_from(["links", "memory", "compute", "capacity"]), MORE, st.booleans())
def test_a_better_chip_never_makes_a_layout_slower(
    seed: int, phase: Phase, what: str, more: float, staged: bool
):
    here = a_setting(seed, staged=staged)
    roles = some_roles(seed, here.mesh)
    was = predict(here, phase, roles)
    now = predict(replace(here, cluster=changed_cluster(here.cluster, what, more)), phase, roles)
    assert now.step_seconds <= was.step_seconds * CLOSE
    assert now.total_seconds <= was.total_seconds * CLOSE
    assert now.step_seconds >= was.step_seconds / (1 + more) / CLOSE  # nor faster than all of it
    if what == "capacity":
        assert now.step_seconds == was.step_seconds
        assert now.max_batch >= was.max_batch


@FEW
@given(SEEDS, PHASES)
def test_a_larger_batch_never_has_a_shorter_longest_step(seed: int, phase: Phase):
    here, name = a_setting(seed), random.Random(seed).choice(NAMED)
    steps = []
    for times in (1, 2, 3, 5, 16):
        batch = times * here.cluster.chips
        sized = here.workload.resized(batch=batch, prefill_batch=batch)
        steps.append(phase_of(replace(here, workload=sized), phase, name).step_seconds)
    assert all(a <= b * CLOSE for a, b in itertools.pairwise(steps))


# -- nothing is counted twice -----------------------------------------------------------------------------


def memory_by_part(prediction: Prediction) -> dict[str, int]:
    return {part: size for part, size in prediction.memory_bytes.items() if part not in ("total", "capacity")}


@FEW
@given(SEEDS, PHASES, st.sampled_from(WEIGHTS), st.sampled_from(ATTENTION))
def test_an_axis_of_one_chip_costs_nothing(
    seed: int, phase: Phase, weights: WeightRole, attention: AttentionRole
):
    here = a_setting(seed)
    roles = some_roles(seed, here.mesh)
    place = random.Random(seed).randint(0, len(here.mesh.axes))
    name = AXES[len(here.mesh.axes)]

    def with_one(values: tuple, one: object) -> tuple:
        return (*values[:place], one, *values[place:])

    mesh = Mesh("".join(with_one(tuple(here.mesh.axes), name)), with_one(here.mesh.sizes, 1))
    more = Roles(
        "drawn",
        "drawn",
        with_one(roles.weights, (name, weights)),
        with_one(roles.attends, (name, attention)),
    )
    was, now = predict(here, phase, roles), predict(replace(here, mesh=mesh), phase, more)
    assert now.step_seconds == pytest.approx(was.step_seconds, rel=1e-12)
    assert now.total_seconds == pytest.approx(was.total_seconds, rel=1e-12)
    assert now.bound.communication_seconds == pytest.approx(was.bound.communication_seconds, rel=1e-12)
    assert now.memory_bytes == was.memory_bytes


@FEW
@given(SEEDS, PHASES, st.booleans())
def test_the_parts_of_memory_are_its_total(seed: int, phase: Phase, staged: bool):
    here = a_setting(seed, staged=staged)
    found = predict(here, phase, some_roles(seed, here.mesh))
    parts = memory_by_part(found)
    assert set(parts) == {"weights", "kv", "activations", "runtime"}
    assert sum(parts.values()) == found.memory_bytes["total"]
    assert min(parts["weights"], parts["kv"], parts["activations"]) > 0
    # over all chips the weights are there once at least
    weights = 2 if here.formats.weights == "bf16" else 1
    assert parts["weights"] * here.cluster.chips >= here.model.parameters * weights * 0.99


# -- units ------------------------------------------------------------------------------------------------


@settings(FEW, max_examples=many(3))
@given(SEEDS, st.floats(0.5, 3))
def test_limits_in_any_unit_of_time_are_the_same_limits(seed: int, slack: float):
    case = a_case(seed)
    free = planned(case)
    assume(free is not None)
    assert free is not None
    slack *= 1.000123  # so that no layout is just at the limit, on either side of it by rounding
    chosen = []
    for unit, size in (("us", 1e6), ("ms", 1e3), ("s", 1.0), ("min", 1 / 60)):
        limits = {
            "max_ttft": parse_duration(f"{free.prefill.total_seconds * slack * size:.18f}{unit}"),
            "max_tpot": parse_duration(f"{free.decode.step_seconds * slack * size:.18f}{unit}"),
        }
        plan = planned(changed(case, **limits))
        if plan is not None:
            assert plan.prefill.total_seconds <= limits["max_ttft"]
            assert plan.decode.step_seconds <= limits["max_tpot"]
        chosen.append(plan and (plan.chosen.score("cost"), plan.prefill.layout, plan.decode.layout))
    assert all(each == chosen[0] for each in chosen)
    assert chosen[0] is not None or slack < 1  # the free plan keeps what is looser than itself
