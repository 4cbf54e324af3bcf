"""`partita.plan` and the names of the package: the command line's planner as one Python call."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints import tiny_gguf

import partita
from partita.cli.main import run
from partita.planner.saved import load_plan
from partita.sharding.mesh import parse_mesh
from partita.specs import Formats, catalogue_model, parse_cluster


def test_the_call_of_the_contract():
    plan = partita.plan("palm-540b", on="tpu-v4:4x4x4", prompt=2048, output=64, batch=64, objective="latency")
    assert str(plan.decode.layout.roles) == "ws2d/batch"
    assert plan.decode.bound.step_seconds == plan.decode.step_seconds > 0
    assert plan.explain().startswith("prefill: ")
    assert plan.explain().count("\n") + 1 == len(plan.reasons)


def test_it_plans_what_the_command_line_plans(capsys: pytest.CaptureFixture[str]):
    plan = partita.plan(
        "palm-8b",
        on="tpu-v4:2x2x2",
        prompt=256,
        output=8,
        batch=16,
        prefill_batch=4,
        context=300,
        objective="cost",
        mesh="x=2,y=4",
        formats=Formats(weights="int8"),
        max_ttft="1s",
        max_tpot="50ms",
        by="bound",
        top=3,
    )
    line = (
        "plan palm-8b --on tpu-v4:2x2x2 --prompt 256 --output 8 --batch 16 --prefill-batch 4 --context 300 "
    )
    line += "--objective cost --mesh x=2,y=4 --weights int8 --max-ttft 1s --max-tpot 50ms --by bound "
    line += "--top 3 --json"
    assert run([*line.split()]) == 0
    printed, mine = json.loads(capsys.readouterr().out), json.loads(json.dumps(plan.as_json()))
    assert {key: printed[key] for key in mine} == mine  # the command answers more besides


def test_descriptions_stand_in_for_names():
    named = partita.plan("palm-8b", on="tpu-v4:2x2x2", batch=2, prompt=64, mesh="x=4,y=2")
    described = partita.plan(
        catalogue_model("palm-8b"),
        parse_cluster("tpu-v4:2x2x2"),
        batch=2,
        prompt=64,
        mesh=parse_mesh("x=4,y=2"),
    )
    assert described.as_json() == named.as_json()


def test_the_batch_is_chosen_unless_given():
    assert partita.plan("palm-8b", on="tpu-v4:2x2x2", prompt=64, output=4).decode.batch == 1
    cheap = partita.plan("palm-8b", on="tpu-v4:2x2x2", prompt=64, output=4, objective="cost")
    assert cheap.decode.batch > 1


def test_chips_formats_chunks_and_stages_are_chosen():
    sizes = {"prompt": 256, "output": 16, "objective": "cost", "batch": 16}
    formats = [Formats(), Formats(weights="int8", kv="int8")]
    free = partita.plan("palm-8b", on="tpu-v4:auto", max_chips=4, formats=formats, chunk="auto", **sizes)
    assert free.decode.setting.formats == formats[1]  # half the bytes and no less work
    for chips in ("1x1x1", "1x1x2", "1x2x2"):
        fixed = partita.plan("palm-8b", on=f"tpu-v4:{chips}", formats=formats, chunk="auto", **sizes)
        assert free.chosen.score("cost") <= fixed.chosen.score("cost")
    staged = partita.plan("palm-8b", on="tpu-v4:1x2x2", stages=2, **sizes)
    assert staged.decode.setting.stages == 2
    assert partita.plan("palm-8b", on="tpu-v4:1x1x1", memory="30GB", **sizes).decode.fits


def test_a_gguf_file_is_planned_and_the_plan_saved(tmp_path: Path):
    model = tiny_gguf.write(tmp_path / "tiny.gguf")
    plan = partita.plan(str(model), on="tpu-v4:1x1x2", batch=2, prompt=8, output=4)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan.as_json()), encoding="utf-8")
    assert load_plan(file).setting == plan.decode.setting


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"model": "palm-9000"}, "model"),
        ({"on": "tpu-v4:4x4"}, "cluster"),
        ({"mesh": "x=4"}, "mesh"),
        ({"batch": "many"}, "batch"),
        ({"batch": 0}, "batch"),
        ({"batch": 1.5}, "batch"),
        ({"prompt": None}, "prompt"),
        ({"context": 0}, "context"),
        ({"max_tpot": "soon"}, "max_tpot"),
        ({"max_ttft": "1ns"}, "max_ttft"),
        ({"max_ttft": ""}, "max_ttft"),
        ({"memory_utilization": 1.5}, "memory_utilization"),
        ({"memory_utilization": 0}, "memory_utilization"),
        ({"memory_utilization": 0.8, "memory": "10GB"}, "memory_utilization"),
        ({"prefix": 64}, "prefix"),
        ({"samples": 0}, "samples"),
        ({"chunk": 0}, "chunk"),
        ({"chunk": "some"}, "chunk"),
        ({"stages": 3}, "stages"),
        ({"rate": "3"}, "rate"),
        ({"rate": "100000/s"}, "rate"),
        ({"memory": "1kB"}, "memory"),
        ({"max_chips": 4}, "max_chips"),
        ({"on": "tpu-v4:auto", "mesh": "x=4"}, "mesh"),
        ({"objective": "fun"}, "objective"),
        ({"objective": "fun", "batch": "auto"}, "objective"),
        ({"top": 0}, "top"),
    ],
    ids=str,
)
def test_wrong_arguments_are_input_errors_that_name_them(wrong: dict, field: str):
    with pytest.raises(partita.InputError) as caught:
        partita.plan(**({"model": "palm-8b", "on": "tpu-v4:2x2x2", "prompt": 64, "batch": 1} | wrong))
    assert caught.value.field == field


def test_the_names_of_the_package():
    from partita.engine.engine import Engine
    from partita.errors import InputError

    assert (partita.Engine, partita.InputError) == (Engine, InputError)
    names = {"Capacity", "Engine", "InputError", "NotFiniteError", "Sampling", "plan"}
    assert set(partita.__all__) == names
    with pytest.raises(AttributeError, match="no attribute 'serve'"):
        _ = partita.serve  # pyright: ignore[reportAttributeAccessIssue]


def test_planning_in_python_imports_neither_jax_nor_what_reads_checkpoints():
    code = "import partita, sys; partita.plan('palm-8b', on='tpu-v4:2x2x2', batch=1, prompt=64); "
    code += (
        "print(sorted({'jax', 'jaxlib', 'gguf', 'tokenizers', 'jinja2', 'typer', 'rich'} & set(sys.modules)))"
    )
    path = os.pathsep.join([str(Path(partita.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        *[({name: 1.5}, "a whole number of at least 1") for name in ("stages", "max_chips", "top")],
        *[({"top": value}, "a whole number of at least 1") for value in (True, "3", None, 0)],
        *[({name: 5}, "number and its unit") for name in ("max_ttft", "max_tpot", "memory", "rate")],
        *[({"formats": value}, "Formats, or a list of them") for value in (5, "bf16", ["bf16"])],
        ({"mesh": 8}, "or a Mesh"),
        ({"model": 8}, "or a Model"),
        ({"on": 8}, "or a Cluster"),
        ({"prompt": 1.5}, "whole number"),
        ({"batch": True}, "whole number"),
    ],
    ids=str,
)
def test_arguments_of_another_type_are_refused_by_name(given: dict[str, Any], accepted: str):
    arguments: dict[str, Any] = {"model": "palm-8b", "on": "tpu-v4:2x2x1", "prompt": 64, "batch": 4} | given
    with pytest.raises(partita.InputError, match=accepted) as caught:
        partita.plan(**arguments)
    assert caught.value.field == next(iter(given))
