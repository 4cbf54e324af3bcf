"""`verify --clock`: what it refuses before anything is compiled, and what it prints of a tiny model run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Partita
from tests.cli.test_bad_input import refused
from tests.measure.test_clock import CLUSTER
from tests.schemas import json_schema, undocumented, validator

import partita.measure.clock
from partita.specs.toml import cluster_toml

SIZES = ("--batch", 2, "--prompt", 4, "--context", 8, "--seconds", 1)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Two devices with a made-up profile, as `calibrate --save` writes them."""
    file = tmp_path / "here.toml"
    file.write_text(cluster_toml(CLUSTER), encoding="utf-8")
    return file


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partita.measure.clock, "Steps", lambda *_: pytest.fail("compiled"))


def changed(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize(
    ("more", "field", "value", "message"),
    [
        (("--layouts", 0), "layouts", 0, "1 to 100"),
        (("--layouts", 101), "layouts", 101, "1 to 100"),
        (("--layouts", "x"), "layouts", "x", "integer"),
        (("--seconds", 0.5), "seconds", 0.5, "1 to 3600"),
        (("--seconds", 1e4), "seconds", 10000.0, "1 to 3600"),
        (("--seconds", "nan"), "seconds", "nan", "1 to 3600"),
        (("--dtype", "int8"), "dtype", "int8", "f32, bf16"),
        (("--dtype", "bf16"), "dtype", "bf16", "here has no peak for it; accepted here: f32"),
        (("--mesh", "x=3"), "mesh", "x=3", "its size must be that of here, 2"),
        (("--mesh", "x"), "mesh", "x", "accepted are name=size pairs"),
        (("--devices", 4), "mesh", "2 chips", "must be the device count, 4"),
        (("--batch", 0), "batch", 0, "at least 1"),
        (("--ffn", "ws9d"), "ffn", "ws9d", "ws1d, ws2d"),
        (("--ffn", "ws1d", "--mesh", "x=8"), "mesh", "x=8", "its size must be that of here, 2"),
        (("--prefill-attention", "y=heads"), "prefill-attention", "y=heads", "axis 'y'"),
        (("--plan", "none.json"), "plan", "none.json", "cannot be read"),
    ],
    ids=str,
)
def test_wrong_flags_are_refused(
    more: tuple, field: str, value: object, message: str, partita: Partita, tiny: Path, here: Path
):
    error = refused(partita, "verify", tiny, "--clock", "--on", here, *more)
    assert (error["field"], error["value"]) == (field, value)
    assert message in error["message"]


@pytest.mark.usefixtures("nothing_compiled")
def test_clock_and_a_cluster_need_one_another(partita: Partita, tiny: Path, here: Path):
    error = refused(partita, "verify", tiny, "--clock")
    assert (error["field"], error["value"]) == ("on", None)
    assert "partita calibrate" in error["message"]
    error = refused(partita, "verify", tiny, "--mesh", "x=2", "--on", here)
    assert (error["field"], error["value"]) == ("on", str(here))
    assert "--clock" in error["message"]


@pytest.mark.usefixtures("nothing_compiled")
def test_a_cluster_without_a_profile_and_one_that_is_not_this_machine(
    partita: Partita, tiny: Path, here: Path, tmp_path: Path
):
    bare = tmp_path / "bare.toml"
    bare.write_text(cluster_toml(CLUSTER.model_copy(update={"profile": None})), encoding="utf-8")
    error = refused(partita, "verify", tiny, "--clock", "--on", bare)
    assert (error["field"], error["value"]) == ("on", str(bare))
    assert "has no profile" in error["message"]
    changed(here, "size = 2", "size = 16")
    error = refused(partita, "verify", tiny, "--clock", "--on", here)
    assert (error["field"], error["value"]) == ("mesh", "16 chips")
    assert refused(partita, "verify", tiny, "--clock", "--on", tmp_path / "none.toml")["field"] == "cluster"


@pytest.mark.usefixtures("nothing_compiled")
def test_a_model_that_does_not_run_or_fits_nowhere(partita: Partita, tiny: Path, here: Path):
    error = refused(partita, "verify", "minicpm3-4b", "--clock", "--on", here)
    assert error["field"] == "model"
    assert "not run yet" in error["message"]
    changed(here, f"hbm_bytes = {CLUSTER.chip.hbm_bytes}", "hbm_bytes = 1000")
    error = refused(partita, "verify", tiny, "--clock", "--on", here)
    assert (error["field"], error["value"]) == ("model", str(tiny))
    assert error["message"] == f"no layout of it on mesh x=2 fits {here}"
    error = refused(partita, "verify", tiny, "--clock", "--on", here, "--ffn", "ws1d")
    assert error["message"] == "does not fit here in prefill's layout ws1d/batch"


def test_what_is_printed_as_json_is_documented(partita: Partita, tiny: Path, here: Path):
    found = partita("verify", tiny, "--clock", "--on", here, *SIZES, "--layouts", 3, "--json").json
    validator("clock-1").validate(found)
    assert list(undocumented(found, json_schema("clock-1"))) == []
    assert found["schema"] == "partita.clock/1"
    sizes = {"batch": 2, "prompt": 4, "context": 8, "dtype": "f32", "chips": 2, "mesh": {"x": 2}}
    assert {key: found[key] for key in sizes} == sizes
    assert found["slower_than_calibrated"] == 1
    assert found["phases"].keys() == {"prefill", "decode"}
    for phase in found["phases"].values():
        rows = {row["layout"]: row for row in phase["layouts"]}
        assert 2 <= len(rows) == len(phase["layouts"]) <= 3
        assert phase["pick"] == min(rows, key=lambda name: rows[name]["estimated_seconds"])
        assert phase["fastest"] == min(rows, key=lambda name: rows[name]["measured_seconds"])
        lost = rows[phase["pick"]]["measured_seconds"] / rows[phase["fastest"]]["measured_seconds"] - 1
        assert phase["pick_slower_by"] == pytest.approx(lost)
        for row in rows.values():
            low, high = row["interval"]
            assert low < row["estimated_seconds"] < high
            assert 0 < row["bound_seconds"] <= row["estimated_seconds"]
            assert row["error"] == pytest.approx(row["estimated_seconds"] / row["measured_seconds"] - 1)


def test_of_a_named_layout_each_phase_is_timed_in_that_one(partita: Partita, tiny: Path, here: Path):
    named = ("--ffn", "ws1d", "--attention", "heads", "--prefill-ffn", "wg-x")
    found = partita("verify", tiny, "--clock", "--on", here, *SIZES, *named, "--json").json
    layouts = {name: [row["layout"] for row in each["layouts"]] for name, each in found["phases"].items()}
    assert layouts == {"prefill": ["wg-x/heads"], "decode": ["ws1d/heads"]}
    assert all(each["rank_correlation"] is None for each in found["phases"].values())
    validator("clock-1").validate(found)


def test_people_see_a_row_for_each_layout_and_what_it_comes_to(partita: Partita, tiny: Path, here: Path):
    changed(here, "compares = true", "compares = true\nprobe_seconds = 3600")
    ran = partita("verify", tiny, "--clock", "--on", here, *SIZES, "--layouts", 2)
    assert ran.code == 0
    shown = " ".join(ran.out.split())
    for phase in ("prefill", "decode"):
        assert f"{phase}: layout" in shown
        assert f"{phase}: median error" in shown
    assert shown.count("over 2 layouts; the planner's pick") == 2
    assert shown.count("within the 90% interval") == 2
    assert "pick" in shown
    assert "Estimated by the profile here before anything was measured;" in shown
    assert "The probe ran 100% faster than at calibration; no time here is corrected for that." in shown
