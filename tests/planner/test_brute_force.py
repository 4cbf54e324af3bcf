"""The search against a slow path: every mesh and every pair of roles on it, priced one at a time.

By the bound, and by the estimate of a profile that is drawn too.

The slow path shares with the search only the pricing of one pair on one mesh, which other tests hold to the
compiled program.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import pytest
from tests.planner.drawn import changed
from tests.sizes import some

from partita.cost.prediction import Setting, predict
from partita.errors import InputError
from partita.planner import Case, Objective, Pair, PlanRequest, best_of
from partita.planner.search import ALIKE, keeps_limits
from partita.sharding.layout import plan_storage
from partita.sharding.mesh import Mesh
from partita.sharding.roles import AttentionRole, Roles, WeightRole
from partita.specs import Cluster, Formats, Model, PhysicalAxis, Workload, catalogue_chip
from partita.specs.hardware import Kind
from partita.specs.profile import Constant, Profile

WEIGHTS: dict[str, tuple[WeightRole, ...]] = {
    "e": ("e", "e-gathered"),
    "f": ("f", "f-gathered"),
    "": ("replica",),
}
ATTENTION: tuple[AttentionRole, ...] = ("heads", "batch", "context", "none")
# few of two axes, which have thousands of pairs on every mesh
LINES = [(2,), (3,), (5,), (7,), (1, 2), (2, 1), (11,), (1, 3), (13,)]
SQUARES = [(4,), (2, 2), (3, 2), (6,)]


def a_case(seed: int) -> Case:
    """A small model on a few chips, drawn at random."""
    draw = random.Random(seed)
    shape = LINES[seed % len(LINES)] if seed % 6 else SQUARES[seed // 6 % len(SQUARES)]
    kv, group = draw.choice([(1, 8), (2, 4), (3, 3), (4, 1), (8, 1), (1, 5)])
    model = Model(
        name="drawn",
        layers=draw.randint(1, 4),
        d_model=draw.choice([48, 128, 250, 512]),
        d_ff=draw.choice([96, 512, 1000, 2048]),
        heads=kv * group,
        kv_heads=kv,
        head_dim=draw.choice([16, 64]),
        vocabulary=draw.choice([100, 1000, 32000]),
        block=draw.choice(["serial", "parallel"]),
        feed_forward=draw.choice(["swiglu", "gelu"]),
    )
    torus = draw.random() < 0.5
    fabric = tuple(
        PhysicalAxis(
            kind="torus" if torus else "switch",
            size=size,
            links=2 if torus else 1,
            link_bandwidth=draw.choice([1e9, 1e10, 1e11]),
        )
        for size in shape
    )
    memory = draw.choice([10**12, 10**12, 40 * 2 * model.parameters // 10])
    chip = catalogue_chip("tpu-v4").model_copy(update={"hbm_bytes": memory, "runtime_bytes": 0})
    batch = draw.choice([1, 2, 3, 8, 64])
    workload = Workload(
        prompt=draw.choice([1, 16, 100, 4000]),
        output=draw.choice([1, 5, 40]),
        batch=batch,
        prefill_batch=draw.choice([1, batch]),
    )
    objective: Objective = draw.choice(["latency", "cost", "throughput"])
    formats = Formats(weights=draw.choice(["bf16", "int8"]), reduce=draw.choice(["f32", "bf16"]))
    cluster = Cluster(name="drawn", chip=chip, fabric=fabric)
    request = PlanRequest(
        model=model,
        clusters=(cluster,),
        formats=(formats,),
        workload=workload,
        objective=objective,
        stages=1,
    )
    (case,) = request.cases()
    return case


def with_profile(case: Case, seed: int) -> Case:
    """The case with a profile of a runtime that is far from the peak in every way; of two axes the first
    joins nodes, in half of them."""
    draw = random.Random(1000 + seed)
    cluster = case.cluster
    if len(cluster.fabric) == 2 and draw.random() < 0.5:
        kinds: tuple[Kind, ...] = ("network", "switch")
        fabric = tuple(
            axis.model_copy(update={"kind": kind, "links": 1})
            for axis, kind in zip(cluster.fabric, kinds, strict=True)
        )
        cluster = cluster.model_copy(update={"fabric": fabric})
    levels = {axis.kind for axis in cluster.fabric}
    values = {
        "matmul_share": draw.uniform(0.2, 1),
        "half_rows": draw.choice([0, 30, 500]),
        "memory_share": draw.uniform(0.2, 1),
        "activation_share": draw.choice([0, 1]),
        "hidden_share": draw.choice([0, 0.4, 1]),
        "layer_seconds": draw.choice([1e-6, 1e-4]),
        "sequence_seconds": draw.choice([0, 1e-6]),
        "step_seconds": draw.choice([1e-5, 1e-2]),
    }
    for level in levels:
        values |= {
            f"{level}/share": draw.uniform(0.1, 1),
            f"{level}/all-to-all/share": draw.uniform(0.1, 1),
            f"{level}/message_seconds": draw.choice([1e-7, 1e-5, 1e-4]),
        }
        if level != "torus":
            values[f"{level}/hop_seconds"] = draw.choice([0, 1e-6])
    constants = {name: Constant(value=value, fixed="drawn") for name, value in values.items()}
    profile = Profile(name="drawn", source="drawn", constants=constants)
    return changed(case, clusters=(cluster.model_copy(update={"profile": profile}),), basis="estimate")


def meshes(shape: tuple[int, ...]) -> Iterator[Mesh]:
    """Every ordered factorisation of every physical axis."""
    for cuts in itertools.product(*(list(factorisations(size)) for size in shape)):
        sizes = tuple(itertools.chain.from_iterable(cuts))
        yield Mesh.of(sizes or (1,))


def factorisations(size: int) -> Iterator[tuple[int, ...]]:
    if size == 1:
        yield ()
    for first in range(2, size + 1):
        if size % first == 0:
            yield from ((first, *rest) for rest in factorisations(size // first))


def every_pair(case: Case, mesh: Mesh) -> Iterator[Pair]:
    workload = case.workload.resized(batch=case.batches[0], prefill_batch=case.prefill_batches[0])
    share = case.request.utilization
    setting = Setting(case.model, case.cluster, mesh, case.formats, workload, memory_utilization=share)
    priced: dict = {}

    def price(phase, roles, storage):
        key = (phase, roles, storage)
        if key not in priced:
            priced[key] = predict(setting, phase, roles, storage)
        return priced[key]

    for stored in itertools.product(("", "e", "f"), repeat=len(mesh.axes)):
        phases = [
            Roles(
                "",
                "",
                tuple(zip(mesh.axes, weights, strict=True)),
                tuple(zip(mesh.axes, attends, strict=True)),
            )
            for weights in itertools.product(*(WEIGHTS[letter] for letter in stored))
            for attends in itertools.product(ATTENTION, repeat=len(mesh.axes))
        ]
        for decode, prefill in itertools.product(phases, phases):
            storage = plan_storage(case.model, mesh, decode, prefill)
            phases = price("prefill", prefill, storage), price("decode", decode, storage)
            yield Pair(*phases, case.ranked_by)


class Unmoved(Pair):
    """A pair as if moving the cache between its layouts took no time; its score is no higher."""

    @property
    def reshard_seconds(self) -> float:
        return 0.0


@pytest.mark.parametrize("seed", some(4, range(30)))
def test_the_search_finds_what_pricing_every_combination_finds(seed: int):
    the_search_finds_the_best(a_case(seed))


@pytest.mark.parametrize("seed", some(4, [*range(1, 30), 0]))  # of 0 there are thousands of pairs
def test_by_the_estimate_too(seed: int):
    the_search_finds_the_best(with_profile(a_case(seed), seed))


def the_search_finds_the_best(case: Case) -> None:
    best = None
    for mesh in meshes(case.cluster.shape):
        for pair in every_pair(case, mesh):
            at_least = Unmoved(pair.prefill, pair.decode, pair.basis).score(case.request.objective)
            if best is not None and at_least > best:
                continue
            if pair.fits and keeps_limits(pair, case):
                best = min(best or math.inf, pair.score(case.request.objective))
    if best is None:
        with pytest.raises(InputError, match="drawn does not fit"):
            best_of([case], top=1)
        return
    plan = best_of([case], top=3)
    scores = [pair.score(case.request.objective) for pair in (plan.chosen, *plan.runners_up)]
    assert min(scores) == pytest.approx(best, rel=1e-9)
    assert scores[0] <= best * (1 + ALIKE)  # a simpler layout, if its bound is alike
    assert all(pair.fits for pair in (plan.chosen, *plan.runners_up))
