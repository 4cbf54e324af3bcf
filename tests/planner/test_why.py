"""What a plan by the bound says of estimates: once why it does not go by them, and every limit they break."""

from dataclasses import replace
from typing import Any

import pytest
from tests.planner.drawn import a_case as a_drawn_case
from tests.planner.drawn import changed, one_case
from tests.planner.pairs import pair_of
from tests.planner.settings import setting

import partita
from partita.cost.prediction import predict
from partita.planner import Case, Objective, Pair, Plan, PlanRequest, best_of, best_plan, make_plan
from partita.planner.chips import parse_clusters
from partita.planner.pair import Basis, step_seconds, total_seconds
from partita.planner.search import keeps_limits
from partita.planner.serving import server
from partita.planner.why import reasons
from partita.sharding.layout import plan_storage
from partita.sharding.mesh import Mesh
from partita.sharding.roles import parse_roles
from partita.specs import Formats, Workload, catalogue_model, format_range, format_seconds, parse_cluster
from partita.specs.units import format_bytes

WHY = "ranked by the bound: profile tpu-v4 was not fitted to layouts side by side"
GIVEN = setting("palm-8b", "tpu-v4:2x2x2", prompt=512, output=16, batch=32)


def why(plan: Plan) -> list[str]:
    return [reason for reason in plan.reasons if reason.startswith("ranked by the bound")]


def broken(plan: Plan) -> list[str]:
    return [reason for reason in plan.reasons if reason.endswith("--by estimate plans by the estimate")]


def test_a_profile_that_does_not_compare_is_the_reason_and_said_once():
    plan = make_plan(GIVEN)
    assert [reason.startswith(WHY) for reason in why(plan)] == [True]
    assert plan.as_json()["reasons"] == list(plan.reasons)
    several = partita.plan("palm-8b", on="tpu-v4:auto", max_chips=4, batch=4)
    assert len(why(several)) == 1
    assert broken(plan) == broken(several) == []


@pytest.mark.parametrize("basis", ["bound", "estimate"])
def test_it_is_not_said_where_the_time_was_asked_for(basis: Basis):
    assert why(make_plan(GIVEN, basis=basis)) == []


@pytest.mark.parametrize("compares", [True, None])
def test_it_is_not_said_where_there_is_no_such_profile(compares: bool | None):
    profile = GIVEN.cluster.profile
    assert profile is not None
    other = None if compares is None else profile.model_copy(update={"compares": compares})
    plan = make_plan(replace(GIVEN, cluster=GIVEN.cluster.model_copy(update={"profile": other})))
    assert plan.ranked_by == ("estimate" if compares else "bound")
    assert why(plan) == []


def test_a_context_has_no_time():
    assert why(make_plan(GIVEN, "context")) == []


@pytest.mark.parametrize("basis", [None, "bound"])
def test_limits_that_the_bound_keeps_and_the_estimate_breaks(basis: Basis | None):
    free = make_plan(GIVEN)
    limits: dict[str, float] = {
        "max_ttft": 0.5 * (free.prefill.total_seconds + total_seconds(free.prefill, "estimate")),
        "max_tpot": 0.5 * (free.decode.step_seconds + step_seconds(free.decode, "estimate")),
    }
    plan = make_plan(GIVEN, basis=basis, **limits)  # type: ignore[arg-type]
    prefill, decode = plan.prefill.estimate, plan.decode.estimate
    assert prefill is not None
    assert decode is not None
    (ttft, tpot) = broken(plan)
    said = format_range(prefill.total_seconds, prefill.total_interval)
    assert ttft.startswith(f"prefill: estimated {said} to the first token, over --max-ttft ")
    assert f"{format_seconds(limits['max_ttft'])}, which the bound meets" in ttft
    said = format_range(decode.step_seconds, decode.step_interval)
    assert tpot.startswith(f"decode: estimated {said} a step, over --max-tpot ")
    assert f"{format_seconds(limits['max_tpot'])}, which the bound meets" in tpot
    assert plan.as_json()["reasons"][-2:] == [ttft, tpot]


def test_a_limit_that_both_keep_is_not_mentioned():
    free = make_plan(GIVEN)
    slow: dict[str, Any] = {
        "max_ttft": 1.01 * total_seconds(free.prefill, "estimate"),
        "max_tpot": 1.01 * step_seconds(free.decode, "estimate"),
    }
    assert broken(make_plan(GIVEN, **slow)) == []
    assert broken(make_plan(GIVEN, basis="estimate", **slow)) == []


def a_case(objective: Objective = "cost", **more: Any) -> Case:
    sizes = tuple(2**i for i in range(7))
    workload = Workload(prompt=512, output=64, batch=1, chunk=more.pop("chunk", None))
    model, cluster = catalogue_model("llama-3-8b"), parse_cluster("h100:1x2")
    request = PlanRequest(
        model=model,
        clusters=(cluster,),
        formats=(Formats(),),
        workload=workload,
        objective=objective,
        stages=1,
        **more,
    )
    return one_case(request, sizes)


def test_a_chunk_between_two_steps_counts():
    asked = a_case(chunk=128)
    free = best_of([asked]).chosen
    estimated = replace(free, basis="estimate")
    limit = 0.5 * (estimated.tpot_seconds + estimated.chunk_seconds + free.tpot_seconds + free.chunk_seconds)
    plan = best_of([changed(asked, max_tpot=limit)])
    prefill, decode = plan.prefill.estimate, plan.decode.estimate
    assert prefill is not None
    assert decode is not None
    around = [p + d for p, d in zip(prefill.step_interval, decode.step_interval, strict=True)]
    said = format_range(prefill.step_seconds + decode.step_seconds, (around[0], around[1]))
    (reason,) = broken(plan)
    assert reason.startswith(f"decode: estimated {said} a step and the chunk before it, over --max-tpot ")


def test_a_rate_that_only_the_bound_sustains():
    free = best_of([a_case()]).chosen
    estimated, bound = (
        server(replace(free, basis=basis), None).requests_per_second for basis in ("estimate", "bound")
    )
    rate = 0.5 * float(estimated + bound)
    plan = best_of([a_case(rate=rate)])
    assert keeps_limits(plan.chosen, a_case(rate=rate))
    load = server(replace(plan.chosen, basis="estimate"), None)
    assert load.requests_per_second < rate
    (reason,) = broken(plan)
    assert reason.startswith(f"estimated {load.requests_per_second:.3g} prompts/s (")
    assert f"below --rate {rate:.3g}/s, which the bound sustains" in reason
    slow, fast = (float(end) for end in reason.partition("(")[2].partition(")")[0].split(" to "))
    assert slow < load.requests_per_second < fast
    assert broken(best_of([a_case(rate=0.1 * rate)])) == []


def test_no_estimate_breaks_no_limit():
    given = setting("palm-8b", "tpu-v5p:2x2x2", prompt=512, output=16, batch=32)
    plan = make_plan(given, max_tpot=1.001 * make_plan(given).decode.step_seconds)
    assert broken(plan) == why(plan) == []


def test_of_clusters_with_and_without_a_profile_that_of_the_first_is_named():
    bare = parse_cluster("tpu-v4:2x2x2").model_copy(update={"profile": None, "name": "bare"})
    clusters = (bare, parse_clusters("tpu-v4:2x2x2")[0])
    request = replace(a_case().request, clusters=clusters)
    assert [reason.startswith(WHY) for reason in why(best_plan(request))] == [True]


# -- why a layout that is faster in a phase alone was not chosen -------------------------------------------


def rejected(chosen: Pair, rival: Pair, case: Case | None = None) -> str:
    """What is said of the rival's decode."""
    said = list(reasons("cost", chosen, [rival], case))
    return next(line for line in said if line.startswith(f"decode: {rival.decode.layout.roles} "))


def test_a_layout_that_is_faster_alone_says_what_it_costs_beside_the_other_phase():
    """Beside the chosen prefill, on the storage of both, its decode makes the plan dearer by what is said."""
    plan = best_of([a_drawn_case(81)], top=1)
    line = next(reason for reason in plan.reasons if "faster" in reason)
    here, mesh = plan.decode.setting, plan.decode.setting.mesh
    decode = parse_roles("ws1d", "heads", mesh.axes)
    storage = plan_storage(here.model, mesh, decode, plan.prefill.layout.roles)
    prefill = predict(here, "prefill", plan.prefill.layout.roles, storage)
    other = Pair(prefill, predict(here, "decode", decode, storage))
    assert other.decode.step_seconds < plan.decode.step_seconds
    ratio = other.score("cost") / plan.chosen.score("cost")
    assert ratio > 2
    moved = format_seconds(other.reshard_seconds - plan.chosen.reshard_seconds)
    assert f"the plan's cost is {ratio:,.3g} times as much" in line
    assert line.endswith(f"of which moving caches is {moved} more a prefill")


def test_a_layout_that_is_faster_alone_may_not_fit_beside_the_other_phase_or_break_a_limit():
    given = replace(GIVEN, mesh=Mesh.of((2, 2, 2)))
    chosen, rival = pair_of(given, "wg-xyz/batch"), pair_of(given, "wg-xyz/batch", "ws2d/batch")
    assert rival.decode.step_seconds < chosen.decode.step_seconds
    held = rival.fullest[1].total
    chip = given.cluster.chip.model_copy(update={"hbm_bytes": int(held) - 1})
    small = replace(given, cluster=given.cluster.model_copy(update={"chip": chip}))
    chosen_there, rival_there = chosen.priced_in(small), rival.priced_in(small)
    assert rival_there.prefill.fits
    assert rival_there.decode.fits
    assert not rival_there.fits
    text = f", but with prefill in wg-xyz/batch a chip would hold {format_bytes(float(held))} of "
    assert text in rejected(chosen_there, rival_there)
    request = PlanRequest.of(given, "cost")
    (case,) = replace(request, max_ttft=0.5 * rival.ttft_seconds).cases()
    assert rejected(chosen, rival, case).endswith("a limit is not kept")
    assert rejected(chosen, rival).endswith("is the same, and the chosen layout is simpler")
