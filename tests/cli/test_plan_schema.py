"""`partita plan --json` against its published schema, with everything that can be asked of it; `glossary`."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Partita
from tests.schemas import json_schema, undocumented, validator

from partita.planner.saved import load_plan

PALM_8B = ("palm-8b", "--on", "tpu-v4:2x2x2", "--prompt", 256, "--output", 16)


@pytest.mark.parametrize(
    "more",
    [
        ("--batch", 8),
        ("--batch", 8, "--rate", "5/s", "--price", "2.5", "--objective", "cost"),
        ("--batch", 8, "--disaggregate"),
    ],
    ids=lambda more: " ".join(map(str, more)),
)
def test_what_is_printed_validates_and_is_documented(partita: Partita, more: tuple, tmp_path: Path):
    saved = tmp_path / "plan.json"
    ran = partita("plan", *PALM_8B, *more, "--save", saved, "--json")
    assert ran.code == 0
    printed = ran.json
    for found in (printed, json.loads(saved.read_text(encoding="utf-8"))):
        validator("plan-1").validate(found)
        assert list(undocumented(found, json_schema("plan-1"))) == []
    compared = partita("plan", *PALM_8B, *more, "--compare", saved, "--json").json
    validator("plan-1").validate(compared)
    assert compared["comparison"]["schema"] == "partita.comparison/1"
    assert compared["comparison"]["setting"] == {}
    assert load_plan(saved).setting.workload.batch == 8


def test_a_plot_is_of_all_batches_and_the_plan_stays_what_it_was(partita: Partita, tmp_path: Path):
    plain = partita("plan", *PALM_8B, "--batch", 1, "--json").json
    drawn = partita("plan", *PALM_8B, "--batch", 1, "--plot", tmp_path / "plot.svg", "--json").json
    validator("plan-1").validate(drawn)
    assert {point["batch"] for point in plain["frontier"]} == {1}
    batches = {point["batch"] for point in drawn["frontier"]}
    assert len(batches) > 5
    text = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert all(f"B:{batch}" in text for batch in (min(batches), max(batches)))
    for key in ("prefill", "decode", "runners_up", "reasons"):
        assert drawn[key] == plain[key]


def test_a_prediction_in_stages_validates(partita: Partita):
    found = partita(
        *("predict", "llama3-8b", "--on", "h100:2x8", "--phase", "decode", "--ffn", "ws1d", "--stages", 2),
        *("--attention", "heads", "--batch", 4, "--context", 128, "--mesh", "x=8", "--json"),
    ).json
    validator("prediction-1").validate(found)
    assert list(undocumented(found, json_schema("prediction-1"))) == []
    assert found["pipeline"]["stages"] == 2


def test_the_glossary_is_a_command(partita: Partita):
    found = partita("glossary", "--json").json
    assert found["schema"] == "partita.glossary/1"
    assert {"TTFT", "TPOT", "MFU"} <= {entry["term"] for entry in found["terms"]}
    shown = partita("glossary")
    assert (shown.code, shown.err) == (0, "")
    assert "Time to first token" in shown.out
