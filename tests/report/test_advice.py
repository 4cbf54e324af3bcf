"""Answers as tables and JSON: nothing that was found is left out."""

from dataclasses import replace

import pytest
from tests.advice.test_compare import Held
from tests.planner.pairs import NAMED, pair_of, phase_of
from tests.planner.settings import palm, setting
from tests.report.shown import text_of

from partita.advice.compare import ComparedFigure, Comparison, compare
from partita.advice.crossover import Crossover, crossovers
from partita.advice.gpu_engines import EngineFlags
from partita.advice.jax_engines import other_engines, partition_specs
from partita.advice.rule import Rule
from partita.advice.rules import broken_rules
from partita.advice.sensitivity import Sensitivity, sensitivities
from partita.planner.pair import Basis
from partita.report import advice
from partita.report.compare import comparison, label
from partita.specs import Formats, format_bytes, format_seconds

INT8 = Formats(weights="int8")


PADDED = Rule(
    name="heads",
    hard=False,
    message="heads: 9 padded to 16",
    alternative="3 or 9 ways divide 9",
    size=9,
    needed=16,
    bytes_per_chip=1_240_000.0,
    step_seconds=2.1e-6,
)
FULL = Rule("memory", True, "memory: 40 GB of 32 GB per chip", "a batch of 7 would fit", 32, 40)
FASTER = Crossover("decode", "batch", 64, 1097, 1096, "ws1d/batch", "faster", 0.25, 0.2)
ROOMIER = Crossover("prefill", "prompt", 2048, 1000, 1002, "wg-x/heads", "fits", 0.0, 0.0)
LINKS = Sensitivity("links", 0.1, "latency", 2.0, 1.9, "ws1d/batch and ws1d/batch on x=8", True, 1.8)
ENGINES = [
    EngineFlags(
        "vLLM", "https://docs", {"--tensor-parallel-size": "8"}, "vllm serve MODEL", ("it pads",), ()
    ),
    EngineFlags("SGLang", "https://docs", {}, "", (), ("replicas of nothing",)),
]
"""Made by hand, as all that is expected of them."""


def row(text: str, begins: str) -> list[str]:
    """The cells of a line; two spaces part them."""
    line = next(line for line in text.splitlines() if line.startswith(begins))
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_rules_by_hand():
    text = text_of(advice.rules([FULL, PADDED], "decode"))
    assert row(text, "decode: rules") == ["decode: rules", "costs at least", "instead"]
    assert row(text, "memory") == [
        "memory: 40 GB of 32 GB per chip",
        "does not run",
        "a batch of 7 would fit",
    ]
    price = "1.24 MB per chip, 2.1 us a step"
    assert row(text, "heads") == ["heads: 9 padded to 16", price, "3 or 9 ways divide 9"]
    estimated = text_of(advice.rules([replace(PADDED, expected_seconds=4e-3)], "decode"))
    assert row(estimated, "heads")[1] == "1.24 MB per chip, 4 ms a step"
    assert row(estimated, "decode: rules")[1] == "costs"


def test_crossovers_by_hand():
    text = text_of(advice.crossovers([FASTER, ROOMIER]))
    assert row(text, "decode") == ["decode", "from batch 1,097", "64", "ws1d/batch", "is faster"]
    assert row(text, "prefill") == ["prefill", "down from prompt 1,000", "2,048", "wg-x/heads", "fits"]


def test_sensitivities_by_hand():
    """log(1.9 / 2) / log(1.1) is -0.538."""
    text = text_of(advice.sensitivities([LINKS]))
    choice = "ws1d/batch and ws1d/batch on x=8 would be chosen"
    assert row(text, "10%") == ["10% faster links", "1.9 s", "2 s", "-5.0%", "-0.54", choice]
    cost = replace(LINKS, objective="cost", changes_choice=None, choice=None, before=0.02, after=0.019)
    found = row(text_of(advice.sensitivities([cost])), "10%")
    assert found[1:3] == ["19 chip-ms per output token", "20 chip-ms per output token"]
    context = replace(cost, objective="context", before=40_000.0, after=43_000.0)
    assert row(text_of(advice.sensitivities([context])), "10%")[1:4] == ["43K tokens", "40K tokens", "+7.5%"]


def test_engines_by_hand():
    text = text_of(advice.other_engines(ENGINES))
    assert text.splitlines()[:4] == [
        "vLLM: vllm serve MODEL",
        "  but it pads",
        "SGLang cannot express it:",
        "  replicas of nothing",
    ]


def test_advice_by_hand_in_json():
    found = {
        "rules": {"decode": [PADDED.as_json()]},
        "crossovers": [FASTER.as_json()],
        "sensitivity": [LINKS.as_json()],
    }
    assert found == {
        "rules": {
            "decode": [
                {
                    "name": "heads",
                    "hard": False,
                    "message": "heads: 9 padded to 16",
                    "alternative": "3 or 9 ways divide 9",
                    "size": 9,
                    "needed": 16,
                    "bytes_per_chip": 1_240_000,
                    "bound": {"step_seconds": 2.1e-6},
                    "estimate": None,
                }
            ]
        },
        "crossovers": [
            {
                "phase": "decode",
                "quantity": "batch",
                "here": 64,
                "value": 1097,
                "still": 1096,
                "becomes": "ws1d/batch",
                "why": "faster",
                "bound": {"gains": 0.2},
                "estimate": None,
            }
        ],
        "sensitivity": [
            {
                "what": "links",
                "more": 0.1,
                "objective": "latency",
                "bound": {
                    "before": 2.0,
                    "after": 1.9,
                    "change": pytest.approx(-0.05),
                    "elasticity": pytest.approx(-0.538172, abs=1e-6),
                    "after_choosing": 1.8,
                },
                "estimate": None,
                "choice": "ws1d/batch and ws1d/batch on x=8",
                "changes_choice": True,
            }
        ],
    }


def test_the_copies_of_one_kv_head_are_priced_by_hand():
    """PaLM 540B has one: attention over heads keeps all of the cache on each of 64 chips, 63 times too often.

    118 layers of a key and a value of 256 in 2 bytes, 2112 positions of 64 sequences: 16.33 GB, of which
    63/64 are read from 1.2 TB/s in 13.4 ms.
    """
    found = broken_rules(phase_of(palm(INT8, batch=64), "decode", "ws2d/heads"))
    line = row(text_of(advice.rules(found, "decode")), "kv_replicas")
    assert line[0].startswith("kv_replicas: 1 KV head on 64 chips")
    assert line[0].endswith("keys and values are kept 64")
    assert line[1] == "16.1 GB per chip, 13.4 ms a step"


def test_a_layout_as_partition_specs_by_hand():
    """2D weight-stationary in the paper's notation: E_x F_yz; attention over the batch."""
    specs = partition_specs(pair_of(palm(batch=64), "ws2d/batch"))
    assert specs["mesh"] == {"x": 4, "y": 4, "z": 4}
    assert specs["weights"]["ffn_in"]["spec"] == "PartitionSpec('x', None, ('y', 'z'))"
    assert specs["weights"]["ffn_out"]["spec"] == "PartitionSpec(('y', 'z'), 'x')"
    assert "PartitionSpec(('y', 'z'), 'x')" in text_of(advice.other_engines([], specs))


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
    assert "none of the other layouts" in text_of(advice.crossovers([]))


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


def test_a_comparison_by_hand():
    figures = (
        ComparedFigure("tpot", "seconds", 0.02, 0.025, "lower"),
        ComparedFigure("throughput", "tokens/s", 900.0, 1200.0, "higher"),
        ComparedFigure("cost", "chip-seconds", 0.004, 0.004, "lower"),
        ComparedFigure("decode_mfu", "share", 0.14, 0.125, "higher"),
        ComparedFigure("decode_memory_kv", "bytes", 2e9, 3.04e12, None),
    )
    estimates = (ComparedFigure("ttft", "seconds", 0.29, 0.58, "lower"),)
    settings = {"workload.batch": (64, 1024), "formats.kv": (None, "int8")}
    found = Comparison(settings, {"decode": ("ws2d/batch", "ws1d/heads")}, figures, estimates)
    text = text_of(comparison(found, "mine", "theirs"))
    assert row(text, "workload.batch") == ["workload.batch", "64", "1,024"]
    assert row(text, "formats.kv") == ["formats.kv", "-", "int8"]
    assert row(text, "decode  ") == ["decode", "ws2d/batch", "ws1d/heads"]
    assert row(text, "TTFT") == ["TTFT", "290 ms", "580 ms", "mine: 50.0% less"]
    assert row(text, "TPOT") == ["TPOT", "20 ms", "25 ms", "mine: 20.0% less"]
    assert row(text, "output tokens/s") == ["output tokens/s", "900", "1.2K", "theirs: 33.3% more"]
    assert row(text, "chip-ms") == ["chip-ms per output token", "4", "4", "same"]
    assert row(text, "decode MFU") == ["decode MFU", "14.0%", "12.5%", "mine: 12.0% more"]
    assert row(text, "decode memory") == ["decode memory per chip: kv", "2 GB", "3.04 TB"]
    written = found.as_json()
    assert written["schema"] == "partita.comparison/1"
    assert written["layouts"] == {"decode": {"a": "ws2d/batch", "b": "ws1d/heads"}}
    assert written["bound"][0] == {
        "name": "tpot",
        "unit": "seconds",
        "a": 0.02,
        "b": 0.025,
        "change": pytest.approx(0.25),
        "better": "a",
    }
    assert [each["better"] for each in written["bound"][1:]] == ["b", None, "a", None]


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
    assert "setting: the same for both" in text
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
