"""`generate` and `verify`: a model run on a small mesh of this process's CPU devices."""

from pathlib import Path

import pytest
from tests.cli.conftest import Partita


def test_generate_prints_one_object_and_the_same_tokens_as_a_plan_says(
    partita: Partita, tiny: Path, tmp_path: Path
):
    """From text on two devices, from token ids on two as a plan file says."""
    layout = ("--mesh", "x=2", "--ffn", "wg-x", "--attention", "heads")
    found = partita("generate", tiny, "--prompt", "ab", "--max-tokens", 3, *layout, "--json").json
    assert found.keys() >= {
        "text",
        "tokens",
        "finish_reason",
        "prompt_tokens",
        "completion_tokens",
        "seconds",
    }
    assert found["text"] == f"ab{found['completion']}"
    assert len(found["tokens"]) == found["completion_tokens"]
    assert found["finish_reason"] == "length"
    assert found["completion_tokens"] == 3
    assert found["prompt_tokens"] == 1  # "ab" is one token
    assert found["seconds"].keys() >= {"prefill", "decode"}

    plan = tmp_path / "plan.json"
    made = ("plan", tiny, "--on", "tpu-v4:1x1x2", "--batch", 2, "--prompt", 8, "--output", 4, "--save", plan)
    assert partita(*made).code == 0
    planned = partita("generate", tiny, "--prompt-ids", 8, "--max-tokens", 3, "--plan", plan, "--json").json
    assert planned["tokens"] == found["tokens"]
    assert planned["prompt_tokens"] == 1
    assert planned["text"] == found["completion"]


def test_verify_prints_exact_checks_of_both_phases(partita: Partita):
    layouts = ("--prefill-ffn", "wg-x", "--ffn", "ws2d", "--attention", "batch")
    found = partita("verify", "smollm2-135m", "--mesh", "x=2", *layouts, "--batch", 2, "--json").json
    assert found["exact"] is True
    assert [(check["phase"], check["layout"]) for check in found["checks"]] == [
        ("prefill", "wg-x/batch"),
        ("switch", "wg-x/batch -> ws2d/batch"),
        ("decode", "ws2d/batch"),
    ]
    for check in found["checks"]:
        assert check["predicted"] == check["counted"] == check["compiled"]
        assert check["flops"]["predicted"] == check["flops"]["counted"]
        assert check["messages"]["predicted"] == check["messages"]["counted"]
    assert found["checks"][0]["predicted"]["all-gather"] > 0
    assert found["checks"][2]["predicted"]["reduce-scatter"] > 0


def test_a_difference_is_shown_and_exits_with_1(
    partita: Partita, tiny: Path, monkeypatch: pytest.MonkeyPatch
):
    """With one byte too many predicted, the table says so, and so does the exit code."""
    import partita.measure.verify as measure

    honest = measure.predicted

    def dishonest(*arguments):
        counts = honest(*arguments)
        for key in list(counts.sent_bytes)[:1]:
            counts.sent_bytes[key] += 1
        return counts

    monkeypatch.setattr(measure, "predicted", dishonest)
    ran = partita("verify", tiny, "--mesh", "x=2", "--ffn", "ws2d", "--batch", 2, "--dtype", "bf16")
    assert ran.code == 1
    assert "DIFFERS" in ran.out
    assert ran.out.rstrip().endswith("NOT exact")
    assert "Traceback" not in ran.err
