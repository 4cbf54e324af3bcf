"""What a plan is asked besides: each answer is about this plan, on these chips."""

import json
from dataclasses import replace

import pytest
from tests.planner.settings import palm, setting

from partita.advice.advice import Advice
from partita.advice.sensitivity import WHAT
from partita.planner import Plan, make_plan
from partita.planner.saved import SavedPlan
from partita.planner.serving import server_of
from partita.specs import Formats
from partita.specs.traffic import Traffic


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(palm(Formats(weights="int8"), batch=64, prefill_batch=1), top=4)


@pytest.fixture(scope="module")
def answers(plan: Plan) -> Advice:
    return Advice(plan)


def test_every_sensitivity_has_a_choice_no_worse_than_the_plans(plan: Plan, answers: Advice):
    assert [each.what for each in answers.sensitivities] == list(WHAT)
    listed = {
        f"{pair.prefill.layout.roles} and {pair.decode.layout.roles} on {pair.decode.setting.mesh}"
        for pair in (plan.chosen, *plan.runners_up)
    }
    mine = f"{plan.prefill.layout.roles} and {plan.decode.layout.roles} on {plan.decode.setting.mesh}"
    for each in answers.sensitivities:
        assert each.before == plan.chosen.latency_seconds
        assert each.choice in listed
        assert each.changes_choice == (each.choice != mine)
        assert each.after_choosing is not None
        assert each.after_choosing <= each.after <= each.before


def test_of_context_more_is_better():
    plan = make_plan(setting("palm-8b", "tpu-v4:2x2x2", batch=32), "context", top=3)
    for each in Advice(plan).sensitivities:
        assert each.after_choosing is not None
        assert each.after_choosing >= each.after >= each.before
        assert (each.after > each.before) == (each.what == "capacity")


def test_crossovers_are_to_other_layouts_of_the_same_phase(plan: Plan, answers: Advice):
    assert {crossing.phase for crossing in answers.crossovers} == {"prefill", "decode"}
    for crossing in answers.crossovers:
        chosen = plan.prefill if crossing.phase == "prefill" else plan.decode
        assert crossing.becomes != str(chosen.layout.roles)
        assert crossing.value != crossing.here
        assert crossing.here == (
            chosen.batch
            if crossing.quantity == "batch"
            else getattr(chosen.setting.workload, crossing.quantity)
        )


def test_rules_are_of_each_phase(answers: Advice):
    assert set(answers.rules) == {"prefill", "decode"}
    padded = Advice(make_plan(setting("smollm2-135m", "tpu-v4:1x2x4", batch=3, prompt=96, output=5)))
    assert any(rule.name in ("heads", "vocabulary", "batch") for rule in padded.rules["decode"])


def test_the_server_is_that_of_the_traffic(plan: Plan, answers: Advice):
    assert answers.server.as_json() == server_of(plan.chosen).as_json()
    longer = replace(answers, traffic=Traffic.of(4096, 64))
    assert longer.server.requests_per_second < answers.server.requests_per_second


def test_it_is_told_in_other_engines_terms(plan: Plan, answers: Advice):
    assert {engine["engine"] for engine in answers.other_engines["engines"]} >= {"vLLM", "MaxText"}


def test_the_document_is_plain_json_and_has_the_plan_and_what_was_asked(plan: Plan, answers: Advice):
    written = json.loads(json.dumps(answers.as_json(), allow_nan=False))
    beside = {
        "rules",
        "crossovers",
        "sensitivity",
        "other_engines",
        "server",
        "simulation",
        "traffic",
        "drafts",
    }
    assert set(written) - set(plan.as_json()) == beside | {"disaggregated", "comparison"}
    assert {phase: [rule["name"] for rule in found] for phase, found in written["rules"].items()} == {
        phase: [rule.name for rule in found] for phase, found in answers.rules.items()
    }
    assert "quantisation" in [rule["name"] for rule in written["rules"]["decode"]]
    assert len(written["sensitivity"]) == 4
    assert (written["traffic"], written["disaggregated"], written["comparison"]) == (None, None, None)
    asked = replace(answers, traffic=Traffic.of(4096, 64))
    same = SavedPlan(plan.decode.setting, plan.prefill.layout.roles, plan.decode.layout.roles)
    compared = asked.as_json(other=same)
    assert compared["traffic"] is not None
    assert compared["comparison"] is not None
