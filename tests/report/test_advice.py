"""Answers as tables and JSON: nothing that was found is left out."""

import json
from dataclasses import replace

import pytest
from tests.advice.test_compare import Held
from tests.planner.pairs import NAMED, pair_of, phase_of
from tests.planner.settings import palm, setting
from tests.report.shown import text_of

from partita.advice.compare import compare
from partita.advice.crossover import crossovers
from partita.advice.other_engines import in_other_terms, other_engines, partition_specs
from partita.advice.rules import broken_rules
from partita.advice.sensitivity import sensitivities
from partita.planner.basis import Basis
from partita.report import advice
from partita.report.compare import comparison, label
from partita.specs import Formats, format_bytes, format_seconds

INT8 = Formats(weights="int8")


def test_rules_show_message_price_and_alternative():
    found = broken_rules(phase_of(palm(INT8, batch=601), "decode", "ws2d/heads"))
    text = " ".join(text_of(advice.rules(found, "decode")).split())
    for rule in found:
        assert rule.name + ":" in text
        assert rule.alternative.split(",")[0][:30] in text
        assert ("does not run" if rule.hard else rule.price.split(",")[0]) in text
    assert "every dim divides" in text_of(advice.rules([], "decode"))


def test_crossovers_show_where_and_what():
    given = palm(INT8, batch=64, prefill_batch=1)
    chosen = phase_of(given, "prefill", "ws2d/batch")
    found = crossovers(chosen, [phase_of(given, "prefill", name) for name in NAMED])
    text = text_of(advice.crossovers(found))
    assert found
    for crossing in found:
        assert f"{crossing.quantity} {crossing.value:,}" in text
        assert crossing.becomes in text
    assert "no other of these layouts" in text_of(advice.crossovers([]))


@pytest.mark.parametrize("objective", ["latency", "cost", "context"])
def test_sensitivities_show_before_and_after(objective):
    found = sensitivities(pair_of(palm(INT8, batch=64), "ws2d/batch"), objective)
    text = text_of(advice.sensitivities(found))
    for each in found:
        assert f"{each.change:+.1%}" in text
        if objective == "latency":
            assert format_seconds(each.after) in text


def test_engines_show_commands_or_reasons():
    plain = pair_of(palm(batch=64), "ws1d/batch")
    split = pair_of(palm(batch=64), "ws2d/batch")
    for pair in (plain, split):
        found = other_engines(pair)
        text = " ".join(text_of(advice.other_engines(found, partition_specs(pair))).split())
        assert "PartitionSpec" in text
        for terms in found:
            assert terms.engine in text
            assert all(" ".join(line.split()[:5]) in text for line in (*terms.cannot, *terms.differs))


def test_answers_are_plain_json():
    given = palm(INT8, batch=64, prefill_batch=1)
    pair = pair_of(given, "ws2d/batch")
    found = advice.answers_json(
        {"decode": broken_rules(pair.decode)},
        crossovers(pair.prefill, [phase_of(given, "prefill", "wg-x/batch")]),
        sensitivities(pair, "latency"),
        in_other_terms(pair),
    )
    written = json.loads(json.dumps(found, allow_nan=False))
    assert set(written) == {"rules", "crossovers", "sensitivity", "other_engines"}
    assert [rule["name"] for rule in written["rules"]["decode"]] == ["quantisation"]
    assert len(written["sensitivity"]) == 4


def test_a_comparison_shows_every_figure_and_who_is_better():
    given = palm(INT8, batch=64, prefill_batch=1)
    a, b = pair_of(given, "ws2d/heads", "ws2d/batch"), pair_of(given, "ws2d/heads")
    found = compare(Held(a), Held(b))
    text = text_of(comparison(found, "fast.json", "slow.json"))
    for figure in found.figures:
        assert label(figure) in text
    assert format_seconds(a.decode.step_seconds) in text
    assert format_bytes(b.decode.memory_bytes["kv"]) in text
    saved = 1 - a.decode.step_seconds / b.decode.step_seconds
    assert f"fast.json: {saved:.1%} less" in text
    assert "asked: the same of both" in text
    estimated, bound = text.split("\nestimated")[1].split("\nbound")
    for part, by in ((estimated, "estimate"), (bound, "bound")):
        timed = [replace(pair, basis=by) for pair in (a, b)]
        for name, attribute in (("TPOT", "tpot_seconds"), ("latency of a request", "latency_seconds")):
            line = next(line for line in part.splitlines() if line.startswith(name))
            mine, theirs = (getattr(pair, attribute) for pair in timed)
            saved = 1 - min(mine, theirs) / max(mine, theirs)
            best = "fast.json" if mine < theirs else "slow.json"
            cells = (format_seconds(mine), format_seconds(theirs), f"{best}: {saved:.1%} less")
            assert all(cell in line for cell in cells)


def test_without_a_profile_only_bounds_are_compared():
    a, b = (pair_of(setting("palm-8b", f"tpu-v5p:2x2x{n}", batch=8), "ws2d/batch") for n in (1, 2))
    text = text_of(comparison(compare(Held(a), Held(b))))
    assert "estimated" not in text
    assert format_seconds(b.decode.step_seconds) in text


def test_rules_cost_what_is_expected_or_at_least_the_bound():
    found = phase_of(palm(INT8, batch=64), "decode", "ws1d/heads")
    heads: dict[Basis, str] = {"bound": "costs at least", "estimate": "costs  "}
    for by, head in heads.items():
        rules = broken_rules(found, by)
        text = text_of(advice.rules(rules, "decode"))
        assert head in text.splitlines()[0]
        assert any(rule.price in text for rule in rules)


def test_what_was_asked_differently_is_shown():
    a, b = pair_of(palm(INT8, batch=64), "ws2d/batch"), pair_of(palm(batch=64), "ws2d/batch")
    text = text_of(comparison(compare(Held(a), Held(b))))
    assert "formats.weights" in text
    assert "int8" in text
