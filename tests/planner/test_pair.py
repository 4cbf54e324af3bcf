"""Plans by the estimate and by the bound: which one is usual, what it keeps to, and what it changes.

What a plan by the bound says of estimates is in test_why.py.
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.planner.drawn import a_case, one_case
from tests.planner.pairs import pair_of
from tests.planner.settings import palm, setting
from tests.planner.test_brute_force import with_profile as with_drawn_profile
from tests.sizes import some

import partita
from partita.advice.advice import Advice
from partita.advice.compare import compare
from partita.advice.rules import broken_rules
from partita.advice.sensitivity import sensitivities
from partita.cost.prediction import Setting
from partita.errors import InputError
from partita.planner import PlanRequest, best_of, best_plan, make_plan
from partita.planner.chips import parse_clusters
from partita.planner.exact import Exact
from partita.planner.pair import BASES, basis_of, parse_basis, step_seconds, total_seconds
from partita.planner.tables import price
from partita.specs import Formats, Workload, catalogue_model, parse_cluster
from partita.specs.catalogue import profile, profile_names
from partita.specs.profile import Constant, Phase, Profile

INT8 = Formats(weights="int8")


def a_profile(compares: bool = True, **values: float) -> Profile:
    """Slashes of constants' names are written as `__`."""
    named = {name.replace("__", "/"): value for name, value in values.items()}
    return Profile(
        name="mine",
        source="made up",
        compares=compares,
        constants={n: Constant(value=v, fixed="made up") for n, v in named.items()},
    )


def with_profile(given: Setting, profile: Profile | None) -> Setting:
    return replace(given, cluster=given.cluster.model_copy(update={"profile": profile}))


# -- which one ----------------------------------------------------------------------------------------------


def test_the_estimate_is_usual_where_the_profile_compares_layouts_and_the_bound_elsewhere():
    given = palm(INT8, batch=64, prefill_batch=1)
    for has, usual in ((a_profile(), "estimate"), (a_profile(compares=False), "bound"), (None, "bound")):
        plan = make_plan(with_profile(given, has))
        assert (plan.ranked_by, plan.as_json()["ranked_by"]) == (usual, usual)
    assert make_plan(with_profile(given, a_profile()), basis="bound").ranked_by == "bound"
    assert make_plan(with_profile(given, a_profile(compares=False)), basis="estimate").ranked_by == "estimate"


@pytest.mark.parametrize("name", profile_names())
def test_no_profile_of_the_catalogue_ranks_plans(name: str):
    """Each was fitted to one layout or two; tpu-v4 would have 1D ahead where Figure 6 of the paper has 2D."""
    assert not profile(name).compares
    for family in profile(name).clusters:
        clusters = parse_clusters(f"{family}:auto", 8)
        assert all(cluster.profile == profile(name) for cluster in clusters)
        assert basis_of(clusters) == "bound"


def test_an_estimate_without_a_profile_is_refused():
    given = with_profile(palm(INT8, batch=64, prefill_batch=1), None)
    with pytest.raises(InputError, match="tpu-v4:4x4x4 has no efficiency profile to estimate by") as caught:
        make_plan(given, basis="estimate")
    assert (caught.value.field, caught.value.value) == ("by", "estimate")
    with pytest.raises(InputError, match="accepted are bound, estimate"):
        parse_basis("guess")
    with pytest.raises(InputError, match="no efficiency profile"):
        total_seconds(pair_of(given, "ws2d/batch").decode, "estimate")


def test_clusters_of_one_plan_go_by_one_time():
    """Bounds are never set beside estimates: one cluster without a profile, and all go by the bound."""
    known = parse_cluster("h100:1x8").model_copy(update={"profile": a_profile()})
    bare = known.model_copy(update={"profile": None, "name": "bare"})
    assert basis_of([known]) == "estimate"
    assert basis_of([known, bare]) == basis_of([known, parse_cluster("h100:1x8")]) == "bound"
    workload = Workload(prompt=128, output=8, batch=1)
    model = catalogue_model("llama-3-8b")
    request = PlanRequest(model=model, clusters=(known, bare), formats=(Formats(),), workload=workload)
    plan = best_plan(request)
    assert {pair.basis for pair in (plan.chosen, *plan.runners_up, *plan.named)} == {"bound"}


def test_it_is_asked_for_in_python_and_by_default_follows_the_profile():
    cluster = parse_cluster("h100:1x2")
    assert partita.plan("llama-3-8b", cluster, batch=4).ranked_by == "bound"
    assert partita.plan("llama-3-8b", cluster, batch=4, by="estimate").ranked_by == "estimate"
    calibrated = cluster.model_copy(update={"profile": a_profile()})
    assert partita.plan("llama-3-8b", calibrated, batch=4).ranked_by == "estimate"
    assert partita.plan("llama-3-8b", calibrated, batch=4, by="bound").ranked_by == "bound"
    with pytest.raises(InputError, match="accepted are bound, estimate"):
        partita.plan("llama-3-8b", "h100:1x2", batch=4, by="luck")  # type: ignore[arg-type]


def test_a_profile_that_takes_nothing_away_is_close_to_the_bound():
    """All of the peak and no message: only that operations wait for each of their own times."""
    given = setting("llama-3-8b", "h100:1x8", batch=16, prompt=512, output=16)
    ideal = with_profile(given, a_profile())
    by_estimate, by_bound = make_plan(ideal, basis="estimate"), make_plan(ideal, basis="bound")
    # an operation waits for the longer of its own two times, a step for that of the two sums
    assert by_estimate.chosen.latency_seconds >= by_bound.chosen.latency_seconds * (1 - 1e-9)
    assert by_estimate.chosen.latency_seconds < by_bound.chosen.latency_seconds * 1.2


# -- what it keeps to and states -----------------------------------------------------------------------------


def test_limits_are_kept_by_what_is_estimated():
    """A limit that the bound keeps at a large batch and the estimate at a smaller one."""
    limit = 0.02
    asked: dict[str, Any] = {"objective": "cost", "max_tpot": "20ms"}
    by_bound = partita.plan("llama-3-70b", "h100:1x8", by="bound", **asked)
    by_estimate = partita.plan("llama-3-70b", "h100:1x8", by="estimate", **asked)
    assert by_bound.decode.step_seconds <= limit < step_seconds(by_bound.decode, "estimate")
    assert step_seconds(by_estimate.decode, "estimate") <= limit
    assert by_estimate.decode.batch < by_bound.decode.batch
    worst = step_seconds(by_estimate.decode, "estimate") / 1e3
    with pytest.raises(InputError, match="the fastest decode step's estimate is"):
        partita.plan(
            "llama-3-70b", "h100:1x8", objective="cost", max_tpot=f"{worst * 1e6:.3f}us", by="estimate"
        )


def test_a_rate_is_sustained_by_what_is_estimated():
    model, cluster = catalogue_model("llama-3-8b"), parse_cluster("h100:1x2")
    workload = Workload(prompt=512, output=64, batch=1)
    sizes = tuple(2**i for i in range(9))
    for basis in BASES:
        request = PlanRequest(
            model=model,
            clusters=(cluster,),
            formats=(Formats(),),
            workload=workload,
            rate=40.0,
            basis=basis,
        )
        plan = best_of([one_case(request, sizes)])
        pair = plan.chosen
        taken = pair.prefill_seconds + pair.decode_seconds
        assert pair.basis == basis
        assert pair.decode.batch / taken >= 40


def test_everything_a_plan_states_is_by_its_time():
    given = palm(INT8, batch=64, prefill_batch=1)
    plan = make_plan(given, "latency", basis="estimate")
    prefill, decode = plan.prefill.estimate, plan.decode.estimate
    assert prefill is not None
    assert decode is not None
    written = plan.as_json()
    assert written["latency_seconds"] == pytest.approx(
        prefill.total_seconds + plan.chosen.reshard_seconds + decode.total_seconds
    )
    seconds = 64 * (prefill.total_seconds + plan.chosen.reshard_seconds) + decode.total_seconds
    assert written["chip_seconds_per_output_token"] == pytest.approx(64 * seconds / (64 * 64))
    assert all(point["seconds"] > 0 for point in written["frontier"])
    assert {point.basis for point in plan.frontier} == {"estimate"}
    rivals = [pair.latency_seconds / plan.chosen.latency_seconds - 1 for pair in plan.runners_up]
    assert [row["loses_by"] for row in written["runners_up"]] == pytest.approx(rivals)
    said = next(reason for reason in plan.reasons if reason.startswith("decode: "))
    assert "estimated" in said
    assert "at peak" in said
    advice = Advice(plan)
    served = advice.server
    assert served.step_seconds == pytest.approx(decode.total_seconds / 64)
    assert all(each.bound is not None for each in advice.sensitivities)
    json.dumps([each.as_json() for each in (*advice.sensitivities, *advice.crossovers)])


def test_a_switch_of_the_cache_waits_for_its_messages():
    """The bytes at the links' share, and a message on the torus for each collective that moves them."""
    given = with_profile(
        palm(INT8, batch=64, prefill_batch=1), a_profile(torus__share=0.5, torus__message_seconds=1e-3)
    )
    still = pair_of(given, "ws2d/heads", "ws2d/batch", "estimate")
    assert replace(still, basis="bound").reshard_seconds == 0  # a slice of what every chip has
    assert still.reshard_seconds == 0
    moved = pair_of(given, "ws2d/context", "ws2d/batch", "estimate")
    least = replace(moved, basis="bound").reshard_seconds
    assert least > 0
    assert moved.reshard_seconds >= 2 * least + 1e-3
    written = make_plan(given).as_json()["switch"]
    assert written["estimate"]["seconds"] >= written["bound"]["seconds"]


def test_rules_and_sensitivities_cost_what_is_estimated():
    given = with_profile(palm(INT8, batch=64, prefill_batch=1), a_profile(memory_share=0.5))
    decode = pair_of(given, "ws2d/heads").decode
    (copies,) = [rule for rule in broken_rules(decode, "estimate") if rule.name == "kv_replicas"]
    assert copies.expected_seconds is not None
    # reading the cache limits a step where it is kept 64 times: at half the bandwidth it costs twice as much
    assert copies.expected_seconds == pytest.approx(2 * copies.step_seconds, rel=0.05)
    assert copies.as_json()["estimate"]["step_seconds"] == copies.expected_seconds
    assert copies.as_json()["bound"]["step_seconds"] == copies.step_seconds
    assert all(rule.expected_seconds is None for rule in broken_rules(decode))
    slow = with_profile(given, a_profile(step_seconds=0.4))
    (links,) = sensitivities(pair_of(slow, "ws2d/batch", basis="estimate"), "latency", what=["links"])
    assert links.bound is not None
    assert abs(links.change) < abs(links.bound.change)  # the host takes most of the time
    assert links.as_json()["bound"]["before"] < links.as_json()["estimate"]["before"]


def test_plans_are_compared_by_both_times():
    given = palm(INT8, batch=64, prefill_batch=1)
    one, other = make_plan(given, basis="estimate"), make_plan(given, basis="bound")
    found = compare(one, other)
    expected = {figure.name: figure for figure in found.estimates}
    assert one.prefill.estimate is not None
    assert expected["ttft"].a == one.prefill.estimate.total_seconds
    assert expected["latency"].a <= expected["latency"].b
    assert found.figure("latency").a >= found.figure("latency").b
    bare = with_profile(given, None)
    assert compare(one, make_plan(bare)).as_json()["estimate"] is None


# -- what it changes ----------------------------------------------------------------------------------------


def test_dear_messages_leave_fewer_collectives():
    """With a millisecond for every collective a small batch is decoded with the fewest there can be."""
    given = setting("llama-3-8b", "h100:1x8", batch=8, prompt=256, output=16)

    def messages(profile: Profile) -> float:
        plan = make_plan(with_profile(given, profile))
        return sum(float(count) for _, count in plan.decode.step.ledger.collectives().values())

    cheap = messages(a_profile(switch__message_seconds=0))
    dear = messages(a_profile(switch__message_seconds=1e-3))
    assert dear < cheap
    # replicas of the weights start none in a layer
    assert dear <= 2 * given.model.layers


def test_hops_of_a_torus_never_rule_out_what_is_best():
    """A role's chips may be cut in several axes, whose rings are shorter: tables take the finest cut."""
    given = setting("palm-8b", "tpu-v4:2x2x4", batch=32, prompt=256, output=1)
    given = with_profile(given, a_profile(torus__hop_seconds=1e-4, step_seconds=1e-3))
    request = PlanRequest(
        model=given.model,
        clusters=(given.cluster,),
        formats=(given.formats,),
        workload=given.workload,
        basis="estimate",
    )
    (case,) = request.cases()
    tables = price(case)
    plan = best_plan(request)
    least = tables.decode_seconds.min() + tables.prefill_seconds.min()
    assert least <= plan.chosen.latency_seconds * (1 + 1e-9)
    for ffn in ("ws1d", "ws2d", "wg-x", "wg-xy", "wg-xyz"):
        for attention in ("heads", "batch"):
            pair = pair_of(
                replace(plan.decode.setting, mesh=given.mesh), f"{ffn}/{attention}", basis="estimate"
            )
            if pair.fits:
                assert least <= pair.latency_seconds * (1 + 1e-9)
                assert plan.chosen.latency_seconds <= pair.latency_seconds * (1 + 1e-9)


@pytest.mark.parametrize("seed", some(4, range(0, 24, 3)))
def test_rows_take_at_most_what_their_layouts_take_alone(seed: int):
    """But for a few messages, where rows priced with one cut its axes finer: 0.3% of those drawn."""
    asked = with_drawn_profile(a_case(seed, chunked=seed % 2 == 0), seed)
    tables, equal = price(asked, 4000), 0
    exact, draw = Exact(tables), np.random.default_rng(seed)
    phases: tuple[Phase, ...] = ("decode", "prefill")
    for phase in phases:
        table = tables.decode if phase == "decode" else tables.prefill
        seconds = tables.decode_seconds if phase == "decode" else tables.prefill_seconds
        for row, b in draw.permutation(np.argwhere(np.isfinite(table.seconds)))[:12].tolist():
            alone = exact.alone(phase, row, b)
            if alone is not None:
                ratio = float(seconds[row, b]) / total_seconds(alone, "estimate")
                assert ratio <= 1.003
                equal += abs(ratio - 1) < 1e-9
    assert equal
