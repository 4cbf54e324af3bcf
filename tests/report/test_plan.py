"""A plan for people: everything that was found is shown, and only what was asked for."""

from dataclasses import replace

import pytest
from tests.planner.pairs import pair_of
from tests.planner.settings import setting
from tests.report.shown import text_of

from partita.advice.advice import Advice
from partita.cost.prediction import reshard_seconds
from partita.planner import Plan, best_plan, make_plan
from partita.planner.chips import parse_clusters
from partita.planner.disaggregation import plan_disaggregated
from partita.planner.pair import Basis
from partita.planner.request import PlanRequest
from partita.report.plan import plan as shown
from partita.report.predictions import NO_PROFILE, phase_text, step_text
from partita.specs import Formats, Workload, catalogue_model, format_range, format_seconds
from partita.specs.traffic import Traffic


@pytest.fixture(scope="module")
def found() -> Plan:
    given = setting("palm-8b", "tpu-v4:2x2x2", prompt=512, output=16, batch=32)
    return make_plan(given, basis="estimate", top=4)


def words(text: str) -> str:
    """Without the ends of lines, and without the spaces that align."""
    return " ".join(text.split())


def _summary(found: Plan, basis: Basis) -> str:
    """The line of TTFT, TPOT and throughput, the last from the times of both phases."""
    prefill, decode = ((p if basis == "bound" else p.estimate) for p in (found.prefill, found.decode))
    assert prefill is not None
    assert decode is not None
    moved = replace(found.chosen, basis=basis).reshard_seconds
    seconds = (
        found.decode.batch / found.prefill.batch * (prefill.total_seconds + moved) + decode.total_seconds
    )
    rate = found.decode.batch * found.decode.setting.workload.output / seconds
    return (
        f"{'estimated' if basis == 'estimate' else 'bound'}: TTFT {format_seconds(prefill.total_seconds)}, "
        f"TPOT {format_seconds(decode.step_seconds)}, {_number(rate)} tokens/s, "
        f"{_number(rate / found.decode.setting.cluster.chips)} tokens/s per chip"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def test_it_shows_both_phases_the_reasons_and_the_runners_up(found: Plan):
    text = text_of(shown(Advice(found)))
    assert words(text).startswith(
        "palm-8b (8.63B parameters) on tpu-v4:2x2x2, mesh x=2,y=2,z=2: prompts of 512, outputs of 16 tokens, "
        f"weights bf16, for latency by the estimate; best of {found.configurations:,} combinations of mesh, "
        "layout and batch"
    )
    for phase in (found.prefill, found.decode):
        assert str(phase.layout.roles) in text
        assert f"{phase.mfu:.1%} (at most {phase.bound_mfu:.1%})" in text
        assert format_seconds(phase.total_seconds) in text
        assert phase_text(phase.estimate) in text
    for reason in found.reasons:
        assert reason in words(text)
    assert len(found.runners_up) == 3
    for pair in found.runners_up:
        for phase in (pair.prefill, pair.decode):
            assert str(phase.layout.roles).split("/")[0] in text
        assert format_seconds(pair.latency_seconds) in text
    assert "runner-up by estimate: prefill" in text
    assert _summary(found, "estimate") in text
    assert _summary(found, "bound") in text
    estimates = [phase.estimate for phase in (found.prefill, found.decode)]
    ends = [sum(e.total_interval[i] for e in estimates if e is not None) for i in (0, 1)]
    switch = found.chosen.reshard_seconds
    expected = switch + sum(e.total_seconds for e in estimates if e is not None)
    around = (ends[0] + switch, ends[1] + switch)
    assert f"latency of one request, estimated: {format_range(expected, around)}" in text
    least = sum(phase.total_seconds for phase in (found.prefill, found.decode))
    least += reshard_seconds(found.prefill, found.decode)
    assert f"latency of one request, bound: {format_seconds(least)}" in text
    assert "profile tpu-v4" in text
    assert "communication added as in the paper, no run that waits for it can be faster" in words(text)


@pytest.mark.parametrize(
    ("cluster", "basis"), [("tpu-v5p:2x2x2", None), ("tpu-v4:2x2x2", None), ("tpu-v4:2x2x2", "bound")]
)
def test_what_is_ranked_by_the_bound_says_so(cluster: str, basis: Basis | None):
    plan = make_plan(setting("palm-8b", cluster, prompt=512, output=16, batch=32), basis=basis, top=2)
    text = words(text_of(shown(Advice(plan))))
    assert "for latency by the bound; best of" in text
    assert "runner-up by bound: prefill" in text
    # without a profile there is no estimate anywhere; with one it is beside
    assert (NO_PROFILE in text) == ("estimated" not in text) == (cluster == "tpu-v5p:2x2x2")
    # why, unless it was asked for or there is nothing else
    assert text.count("ranked by the bound: profile tpu-v4") == (cluster == "tpu-v4:2x2x2" and basis is None)


def test_it_shows_crossovers_sensitivities_and_rules(found: Plan):
    advice = Advice(found)
    text = words(text_of(shown(advice)))
    assert advice.crossovers
    assert all(f"{crossing.quantity} {crossing.value:,}" in text for crossing in advice.crossovers)
    assert all(f"{each.change:+.1%}" in text for each in advice.sensitivities)
    for broken in advice.rules.values():
        assert all(rule.message.split(":")[0] in text for rule in broken)


def test_only_what_was_asked_is_shown(found: Plan):
    text = words(text_of(shown(Advice(found))))
    for unasked in ("as a server", "disaggregated", "PartitionSpec", "the other", "for a million"):
        assert unasked not in text


def test_the_switch_between_layouts_is_told_where_there_is_one():
    given = setting("palm-8b", "tpu-v4:2x2x2", prompt=512, output=16, batch=32)
    same, moved = pair_of(given, "ws2d/batch"), pair_of(given, "ws2d/context", "ws2d/batch")
    assert same.reshard_seconds == 0 < moved.reshard_seconds
    plan = make_plan(given)
    texts = [words(text_of(shown(Advice(replace(plan, chosen=pair))))) for pair in (same, moved)]
    assert "to move keys and values" not in texts[0]
    assert f"({format_seconds(moved.reshard_seconds)} of it to move keys and values between" in texts[1]


def test_a_rate_a_price_and_traffic_make_it_a_server(found: Plan):
    rate, price = 10.0, 3.0
    server = Advice(found).server
    text = words(text_of(shown(Advice(found, rate=rate, price=price))))
    assert f"an estimated {server.requests_per_second:.3g} prompts" in text
    assert f"at 10 prompts/s it is {rate / server.requests_per_second:.0%} busy" in text
    # 8 chips are paid for 160 tokens a second, however idle they are
    assert f"{price * 8 / 3600 * 1e6 / (rate * 16):.4g} for a million output tokens at that rate" in text
    full = words(text_of(shown(Advice(found, price=price))))
    cheapest = price * 8 / 3600 * 1e6 / server.output_tokens_per_second
    assert f"{cheapest:.4g} for a million output tokens " in full
    bound = replace(found, chosen=replace(found.chosen, basis="bound"))
    text = words(text_of(shown(Advice(bound, price=price))))
    server = Advice(bound).server
    assert f"at most {server.requests_per_second:.3g} prompts" in text
    least = price * 8 / 3600 * 1e6 / server.output_tokens_per_second
    assert least < cheapest
    assert f"{least:.4g} for a million output tokens, at least" in text
    traffic = Traffic.of(512, 16, 0)
    assert "over 1 request shape" in words(text_of(shown(Advice(found, traffic=traffic))))


def test_another_plan_is_set_beside_it(found: Plan):
    other = make_plan(
        setting("palm-8b", "tpu-v4:2x2x2", Formats(weights="int8"), prompt=512, output=16, batch=32)
    )
    text = text_of(shown(Advice(found), None, other))
    assert "this plan" in text
    assert "the other" in text
    assert "formats.weights" in text
    assert f"{format_seconds(other.decode.step_seconds)}" in text


def test_other_engines_are_shown_where_asked(found: Plan):
    text = text_of(shown(Advice(found), engines=True))
    for engine in ("PartitionSpec", "vLLM", "SGLang", "TensorRT-LLM", "MaxText"):
        assert engine in text


def test_pools_are_shown_beside_the_shared_chips(found: Plan):
    clusters = parse_clusters("tpu-v4:auto", 8)
    request = PlanRequest(
        model=catalogue_model("palm-8b"),
        clusters=(clusters[-1],),
        formats=(Formats(),),
        workload=Workload(prompt=512, output=16, batch=1),
        objective="cost",
        auto_batch=True,
        basis="estimate",
    )
    pools, cheapest = plan_disaggregated(request, clusters, 8), best_plan(request)
    text = words(text_of(shown(Advice(cheapest), pools)))
    cost, shared = pools.chip_seconds_per_output_token, cheapest.chosen.chip_seconds_per_output_token
    assert f"disaggregated: {pools.chips} chips sustain {pools.prompts_per_second:.3g} prompts/s" in text
    assert f"{abs(cost / shared - 1):.1%} {'less' if cost < shared else 'more'} than on shared chips" in text
    assert "chip-ms per output token by the estimate" in text
    for unit, say in ((pools.prefill, phase_text), (pools.decode, step_text)):
        assert str(unit.prediction.layout.roles) in text
        assert say(unit.prediction.estimate) in text
    # a plan for latency, or for one batch, is no measure of the pools' cost
    assert "than on shared chips" not in words(text_of(shown(Advice(found), pools)))


def test_nothing_is_cut_within_a_pipes_width():
    """At the 160 columns of a pipe no roles and no number are broken in the middle."""
    from io import StringIO

    from rich.console import Console

    plan = make_plan(setting("llama-3-70b", "h100:2x8", prompt=512, output=16, batch=64))
    console = Console(width=160, file=StringIO(), record=True)
    console.print(shown(Advice(plan)))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 160
    for pair in plan.runners_up:
        for phase in (pair.prefill, pair.decode):
            for piece in str(phase.layout.roles).replace("/", ",").split(","):
                assert piece in text
        assert f"{pair.prefill.batch} / {pair.decode.batch}" in text
