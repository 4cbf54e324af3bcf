"""A plan as a file: what `plan --save` wrote is priced, explained, run and verified as it says."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Partita
from tests.cli.test_bad_input import refused
from tests.schemas import json_schema, undocumented, validator

from partita.planner.saved import load_plan

RUN = ("--prompt-ids", "8,3,5", "--max-tokens", 4)


def written(file: Path, prefill: str, decode: str) -> Path:
    """A plan file with other layouts, as somebody may write them into it."""
    data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    for phase, layout in (("prefill", prefill), ("decode", decode)):
        data[phase]["layout"]["ffn"], data[phase]["layout"]["attention"] = layout.split("/")
    file.write_text(json.dumps(data), encoding="utf-8")
    return file


def check_explained(partita: Partita, file: Path) -> None:
    """`explain` prices each operation; together they are the step that the plan says."""
    explained = partita("explain", file, "--json").json
    for phase, prediction in zip(explained["phases"], load_plan(file).predictions(), strict=True):
        assert phase["layout"] == str(prediction.layout.roles)
        seconds = sum(op["bound_seconds"] for op in phase["ops"])
        assert seconds == pytest.approx(prediction.step_seconds, rel=1e-9)


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("x=replica,y=f-gathered,z=e/x=batch,y=heads,z=context", "x=replica,y=f,z=e/batch"),
        ("wg-xyz/x=none,y=context,z=heads", "ws2d/x=heads,y=context,z=none"),
    ],
)
def test_a_plan_with_roles_is_explained_verified_and_run(
    prefill: str, decode: str, partita: Partita, tiny: Path, tmp_path: Path
):
    """Tokens are those of one device, and the bytes moved are those predicted."""
    file = tmp_path / "plan.json"
    made = ("plan", tiny, "--on", "tpu-v4:2x2x2", "--mesh", "x=2,y=2,z=2", "--prompt", 8, "--output", 4)
    assert partita(*made, "--batch", 4, "--save", file).code == 0
    written(file, prefill, decode)
    assert [str(p.layout.roles) for p in load_plan(file).predictions()] == [prefill, decode]
    check_explained(partita, file)
    alone = partita("generate", tiny, *RUN, "--mesh", "x=1", "--json").json
    planned = partita("generate", tiny, *RUN, "--plan", file, "--json").json
    assert planned["tokens"] == alone["tokens"]
    found = partita("verify", tiny, "--plan", file, "--batch", 4, "--json").json
    assert found["exact"] is True
    layouts = {check["phase"]: check["layout"] for check in found["checks"]}
    assert (layouts["prefill"], layouts["decode"]) == (prefill, decode)


def test_three_kv_heads_are_planned_and_verified_on_eight_devices(partita: Partita, tmp_path: Path):
    """As the planner chooses, at a batch that no axis of eight can split."""
    file = tmp_path / "plan.json"
    made = ("plan", "smollm2-135m", "--on", "cpu:4x2", "--prompt", 16, "--output", 8, "--batch", 1)
    printed = partita(*made, "--save", file, "--json").json
    validator("plan-1").validate(printed)
    assert list(undocumented(printed, json_schema("plan-1"))) == []
    assert json.loads(file.read_text(encoding="utf-8")) == printed
    check_explained(partita, file)
    verified = ("verify", "smollm2-135m", "--plan", file, "--batch", 1, "--dtype", "bf16", "--json")
    found = partita(*verified).json
    assert found["exact"] is True
    assert found["checks"][-1]["layout"] == (
        f"{printed['decode']['layout']['ffn']}/{printed['decode']['layout']['attention']}"
    )


# -- what is planned and not run yet --------------------------------------------------------------------


def test_stages_are_planned_and_explained_and_not_run(partita: Partita, tiny: Path, tmp_path: Path):
    file = tmp_path / "plan.json"
    made = ("plan", tiny, "--on", "h100:2x2", "--prompt", 8, "--output", 4, "--batch", 4, "--stages", 2)
    printed = partita(*made, "--save", file, "--json").json
    validator("plan-1").validate(printed)
    assert printed["decode"]["pipeline"]["stages"] == printed["setting"]["stages"] == 2
    check_explained(partita, file)
    for command in (("generate", tiny, *RUN), ("verify", tiny)):
        error = refused(partita, *command, "--plan", file)
        assert (error["field"], error["value"]) == ("stages", 2)
        assert "can be planned but not run yet" in error["message"]


def test_a_model_beyond_the_engine_is_planned_and_not_run(partita: Partita, tmp_path: Path):
    model = "minicpm3-4b"
    file = tmp_path / "plan.json"
    made = ("plan", model, "--on", "h100:1x2", "--prompt", 64, "--output", 4, "--batch", 1)
    printed = partita(*made, "--save", file, "--json").json
    validator("plan-1").validate(printed)
    check_explained(partita, file)
    error = refused(partita, "verify", model, "--plan", file)
    assert error["field"] == "model"
    assert "latent attention, longrope rotary scaling" in error["message"]


def test_a_plan_and_layouts_are_not_given_together(partita: Partita, tiny: Path, tmp_path: Path):
    file = tmp_path / "plan.json"
    made = ("plan", tiny, "--on", "tpu-v4:1x1x2", "--prompt", 8, "--output", 4, "--batch", 2)
    assert partita(*made, "--save", file).code == 0
    for option, value in (("--mesh", "x=2"), ("--ffn", "ws1d"), ("--prefill-attention", "heads")):
        error = refused(partita, "verify", tiny, "--plan", file, option, value)
        assert (error["field"], error["value"]) == (option.removeprefix("--"), value)
        assert "give it or --plan" in error["message"]
