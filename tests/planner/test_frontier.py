"""The frontier: no point is beaten, every point fits, and a prompt's cost is that of all its chunks."""

from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest

from partita.planner.chips import parse_clusters
from partita.planner.exact import Exact
from partita.planner.frontier import Point, frontier, over_batches, undominated
from partita.planner.request import PlanRequest
from partita.planner.tables import Tables, price
from partita.specs import Formats, Workload, catalogue_model, parse_cluster
from partita.specs.profile import Phase

PHASES: tuple[Phase, ...] = ("decode", "prefill")


def tables(name: str, most: int, model: str = "palm-8b", workload: dict[str, int] | None = None, **more: Any):
    sizes = {"prompt": 256, "output": 16, "batch": 1} | (workload or {})
    more = {"auto_batch": True} | more
    request = PlanRequest(
        model=catalogue_model(model),
        clusters=tuple(parse_clusters(name, most)),
        formats=(Formats(weights="int8"),),
        workload=Workload(**sizes),
        objective="cost",
        **more,
    )
    return [price(case) for case in request.cases()]


def of(points: tuple[Point, ...], phase: Phase) -> list[Point]:
    return [point for point in points if point.prediction.phase == phase]


@pytest.fixture(scope="module")
def priced() -> list[Tables]:
    return tables("tpu-v4:auto", 8)


def as_good(a: Point, b: Point) -> bool:
    return a.seconds <= b.seconds and a.chip_seconds_per_token <= b.chip_seconds_per_token


def test_no_point_is_dominated_and_every_point_fits(priced: list[Tables]):
    found = frontier(priced)
    for phase in PHASES:
        points = of(found, phase)
        assert len(points) > 3
        assert not any(as_good(a, b) for a, b in permutations(points, 2))
        assert len({point.prediction.setting.cluster.chips for point in points}) > 1
        assert [point.seconds for point in points] == sorted(point.seconds for point in points)
        assert all(point.prediction.fits for point in points)
        assert all(a.mfu < b.mfu for a, b in pairwise(points))


@pytest.mark.parametrize("phase", PHASES)
def test_some_point_is_as_good_as_any_layout_that_fits(priced: list[Tables], phase: Phase):
    points, draw, compared = of(frontier(priced), phase), np.random.default_rng(5), 0
    for each in priced:
        exact, fits = Exact(each), each.decode_fits if phase == "decode" else each.prefill_fits
        for row, b in draw.permutation(np.argwhere(fits))[:15].tolist():
            prediction = exact.alone(phase, row, b)
            if prediction is not None and prediction.fits:
                other = Point(prediction, each.case.ranked_by)
                seconds, cost = other.seconds * (1 + 1e-9), other.chip_seconds_per_token * (1 + 1e-9)
                assert any(p.seconds <= seconds and p.chip_seconds_per_token <= cost for p in points)
                compared += 1
    assert compared > 30


def test_what_does_not_fit_is_no_point():
    """540B in int8 need more than one chip has; and no batch is offered whose cache is too large."""
    found = frontier(tables("tpu-v4:auto", 32, "palm-540b", {"prompt": 2048, "output": 64}))
    assert {point.prediction.setting.cluster.chips for point in found} == {32}
    for phase in PHASES:
        largest = max(of(found, phase), key=lambda point: point.prediction.batch)
        assert largest.prediction.batch < 4096
        memory = largest.prediction.memory_bytes
        assert memory["total"] <= memory["capacity"]


def test_of_many_points_the_ends_are_kept(priced: list[Tables]):
    every, few = frontier(priced), frontier(priced, most=3)
    for phase in PHASES:
        mine, all_of_them = of(few, phase), of(every, phase)
        assert len(mine) == 3
        ends = [(p.seconds, p.chip_seconds_per_token) for p in (all_of_them[0], all_of_them[-1])]
        assert [(p.seconds, p.chip_seconds_per_token) for p in (mine[0], mine[-1])] == ends


def test_a_prompt_in_chunks_is_priced_whole():
    """Three chunks of 256 tokens and one of 132, after a cached prefix of 100."""
    sizes = {"prompt": 1000, "prefix": 100, "chunk": 256}
    points = of(frontier(tables("h100:auto", 4, "llama-3-8b", sizes)), "prefill")
    assert len(points) > 2
    assert not any(as_good(a, b) for a, b in permutations(points, 2))
    for point in points:
        prediction, setting = point.prediction, point.prediction.setting
        assert prediction.steps == 4
        assert point.seconds == prediction.total_seconds > 3 * prediction.step_seconds
        tokens = prediction.batch * 900
        assert point.chip_seconds_per_token == pytest.approx(setting.cluster.chips * point.seconds / tokens)
        could = setting.cluster.chips * point.seconds * setting.cluster.chip.peak_flops["bf16"]
        model = setting.model
        matrices = 2 * (model.parameters - 2 * model.d_model * model.vocabulary) * tokens
        pairs = 900 * 100 + 900 * 901 // 2  # of a prompt under the causal mask, and with its prefix
        attention = 4 * model.layers * model.heads * model.head_dim * pairs * prediction.batch
        unembedded = 2 * model.d_model * model.vocabulary * prediction.batch
        # the norms' gains are parameters, and no matrices
        assert point.mfu == pytest.approx((matrices + attention + unembedded) / could, rel=1e-4)
        written, expected = point.as_json(), prediction.estimate
        assert written["chunk"] == 256
        assert written["bound"] == {"seconds": prediction.total_seconds}
        assert expected is not None
        around = list(expected.total_interval)
        assert written["estimate"] == {"seconds": expected.total_seconds, "interval": around}


def test_over_batches_asks_the_same_at_every_batch():
    one = tables("tpu-v4:2x2x1", 4, workload={"batch": 3, "samples": 2}, auto_batch=False)
    (over,) = over_batches(one)
    assert over.case.batches == tuple(2**i for i in range(13))
    assert over.case.prefill_batches == tuple(2**i for i in range(12))  # of two samples each
    asked = replace(over.case, batches=(3,), prefill_batches=(2,))
    assert asked == one[0].case
    assert len(of(frontier([over]), "decode")) > len(of(frontier(one), "decode")) == 1


def test_stages_are_points_too():
    two = tables("h100:2x8", 16, "llama-3-70b", auto_batch=False, stages=2)
    assert {point.as_json()["stages"] for point in frontier(two)} == {2}
    assert all(p.prediction.setting.cluster == parse_cluster("h100:2x8") for p in frontier(two))


def test_undominated_keeps_the_ends_and_of_equals_one():
    cells = [
        (2.0, 2.0, "b"),
        (1.0, 3.0, "a"),
        (2.0, 2.0, "c"),
        (3.0, 2.0, "d"),
        (1.0, 4.0, "e"),
        (4.0, 1.0, "f"),
    ]
    assert undominated(cells) == [(1.0, 3.0, "a"), (2.0, 2.0, "b"), (4.0, 1.0, "f")]
    assert undominated([]) == []
