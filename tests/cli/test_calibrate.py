"""`partita calibrate`: refuses bad input before it measures, and writes a file that `plan` takes."""

import json
import subprocess
import sys
from itertools import islice

import pytest
from jsonschema import Draft202012Validator
from tests.cli.conftest import Partita
from tests.schemas import json_schema

from partita.measure.calibrate import collectives, layers, matmul


@pytest.fixture
def unmeasured(monkeypatch):
    """Nothing may be measured."""

    def measured(*_, **__):
        pytest.fail("measured")

    monkeypatch.setattr("partita.measure.calibrate.run.calibrate", measured)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--save", "here.json"), "error: save: here.json: a cluster's file must end in .toml"),
        (("--save", "none/here.toml"), "error: save: none/here.toml: cannot be written: No such file"),
        (("--seconds", "0"), "error: seconds: 0.0: 1 to 3600 are accepted"),
        (("--seconds", "nan"), "error: seconds: nan: 1 to 3600 are accepted"),
        (("--seconds", "inf"), "error: seconds: inf: 1 to 3600 are accepted"),
        (("--devices", "0"), "error: devices: 0: 1 or more devices are accepted"),
        (("--devices", "-1"), "error: devices: -1: 1 or more devices are accepted"),
        (("--devices", "99999"), "error: devices: 99999: up to 4096 devices are accepted"),
    ],
)
@pytest.mark.usefixtures("unmeasured")
def test_bad_input_is_one_line(partita: Partita, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    ran = partita("calibrate", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(says)
    assert ran.err.count("\n") == 1


def test_an_interrupt_leaves_the_old_file(partita: Partita, tmp_path, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("partita.measure.calibrate.run.calibrate", stopped)
    path = tmp_path / "here.toml"
    path.write_text("old", encoding="utf-8")
    assert partita("calibrate", "--devices", 2, "--save", path).code == 130
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_it_makes_the_devices_it_is_asked_for():
    """The command in a process of its own, where nothing has asked JAX for devices yet."""
    code = (
        "import sys, partita.measure.calibrate.run as run\n"
        "run.calibrate = lambda devices, *_: sys.exit(40 + len(devices))\n"
        "from partita.cli.main import run\n"
        "run(['calibrate', '--devices', '3', '--seconds', '1'])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 43, ran.stderr


def test_what_it_writes_is_planned_for(partita: Partita, tmp_path, monkeypatch):
    """A calibration on fewer programs than it takes to be good, so that it takes seconds."""

    def small(machine, of=layers.settings):
        return [step for step in of(machine) if step.model.name == "wide"][::2]

    monkeypatch.setattr(layers, "settings", small)
    few = matmul.settings
    monkeypatch.setattr(matmul, "settings", lambda machine: islice(few(machine), 6))
    kinds = collectives.settings
    monkeypatch.setattr(collectives, "settings", lambda machine: islice(kinds(machine), 0, None, 2))
    path = tmp_path / "here.toml"
    ran = partita("calibrate", "--devices", 2, "--seconds", 1, "--save", path, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    Draft202012Validator(json_schema("calibration-1")).validate(found)
    assert found["schema"] == "partita.calibration/1"
    assert {rate["unit"] for rate in found["rates"]} == {"FLOP/s", "bytes/s"}
    peaks = found["cluster"]["chip"]
    for rate in found["rates"]:  # a peak is never below what was reached
        most = max(peaks["peak_flops"].values()) if rate["unit"] == "FLOP/s" else peaks["hbm_bandwidth"]
        assert 0 < rate["per_second"] <= most
    assert found["cluster"]["name"] == "here"
    assert found["measurements"].keys() == {"matmul", "collective", "layered"}
    for each in (row for rows in found["measurements"].values() for row in rows):
        assert each["measured_seconds"] > 0
        assert each["error"] == pytest.approx(each["estimated_seconds"] / each["measured_seconds"] - 1)
    f32 = ("--weights", "f32", "--kv", "f32", "--activations", "f32")
    planned = partita("plan", "smollm2-135m", "--on", path, *f32, "--prompt", 64, "--output", 8, "--json")
    assert planned.code == 0, planned.err
    plan = json.loads(planned.out)
    assert plan["ranked_by"] == "estimate"
    for phase in ("prefill", "decode"):
        estimate = plan[phase]["estimate"]
        assert estimate["profile"] == "here"
        assert estimate["step_seconds"] >= plan[phase]["bound"]["step_seconds"]
