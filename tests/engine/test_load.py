"""`Engine.load`; what is refused: of plans before a model is opened, of prompts, of weights; number formats.

Which of them a run has: said, planned, or what its devices are fast in.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checkpoints import tiny_folder
from tests.checkpoints.in_memory import in_int8
from tests.sizes import full

from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
from partita.cost.prediction import Setting
from partita.engine.engine import Engine
from partita.engine.load import EngineRequest, number_formats
from partita.errors import InputError
from partita.planner.saved import SavedPlan
from partita.sharding import Mesh, parse_layout
from partita.specs import Formats, Workload, catalogue_model, parse_cluster
from partita.specs.sampling import Sampling


def staged(stages: int) -> SavedPlan:
    workload = Workload(prompt=64, output=8, batch=8)
    model, cluster = catalogue_model("palm-8b"), parse_cluster("tpu-v4:2x2x2")
    setting = Setting(model, cluster, Mesh.of((2, 4 // stages)), Formats(), workload, stages=stages)
    roles = parse_layout("ws2d/batch", "xy")
    return SavedPlan(setting, roles, roles)


def test_a_plan_with_pipeline_stages_is_refused():
    with pytest.raises(InputError, match="1 is accepted") as error:
        Engine.load("nothing-of-this-name", plan=staged(2))
    assert (error.value.field, error.value.value) == ("stages", 2)


def test_one_stage_is_not():
    with pytest.raises(InputError) as error:
        Engine.load("nothing-of-this-name", plan=staged(1))
    assert error.value.field != "stages"


def test_an_empty_mesh_is_refused_not_taken_for_the_usual_one():
    with pytest.raises(InputError, match="is not an axis") as error:
        Engine.load("nothing-of-this-name", mesh="")
    assert error.value.field == "mesh"


def llama_folder(at: Path) -> Path:
    config, tensors = tiny_folder.CONFIGS["llama"][0], tiny_folder.stored("llama")[1]
    return tiny_folder.write(at / "llama", config, tensors)


def test_a_folder_without_a_tokenizer_ends_where_its_configuration_says(tmp_path: Path):
    folder = llama_folder(tmp_path)
    endless = Sampling(max_tokens=4, ignore_eos=True)
    free = Engine.load(folder, dtype="f32").complete([[1]], endless)[0][0].tokens
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [free[1]]}))
    ended = Engine.load(folder, dtype="f32").complete([[1]], Sampling(max_tokens=4))[0][0]
    assert (ended.tokens, ended.finish) == (free[: free.index(free[1])], "stop")


@pytest.mark.parametrize("prompts", ["ab", [[1.5, 2]], [[True]], 5, [b"ab"], [1, 2]])
def test_prompts_that_are_none(prompts, tmp_path: Path):
    engine = Engine.load(llama_folder(tmp_path), dtype="f32")
    with pytest.raises(InputError, match="accepted") as error:
        engine.complete(prompts, Sampling(max_tokens=1))
    assert error.value.field == "prompt"


BF16 = Formats.all_in("bf16")


@pytest.mark.parametrize(
    ("name", "value", "formats", "message"),
    [
        ("layers.0.q", np.nan, None, "not finite"),
        ("layers.0.q", -np.inf, BF16, "not finite"),
        ("embed", -3.4e38, BF16, r"holds 3.4e\+38, more than bfloat16 does \(up to 3.38953e\+38\)"),
        ("layers.0.o_scale", np.inf, Formats(weights="int8"), "not finite"),
    ],
)
def test_weights_that_are_not_finite_are_refused_by_name(
    name: str, value: float, formats: Formats | None, message: str
):
    model = tiny_folder.CONFIGS["llama"][1]
    parameters = random_parameters(model, seed=0)
    if name.endswith("_scale"):
        parameters = dict(in_int8(MemoryCheckpoint(model, parameters)).parameters)
    parameters[name].flat[3] = value
    mesh, roles = Mesh("x", (1,)), parse_layout("ws2d/heads", "x")
    with pytest.raises(InputError, match=message) as error:
        Engine(MemoryCheckpoint(model, parameters), mesh, roles, roles, formats=formats)
    assert (error.value.field, error.value.value) == ("model", name)


@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        *[({"chunk": value}, "a whole number of at least 1") for value in (1.5, True, "8", 0, -1, [2])],
        *[({"devices": value}, "a whole number of at least 1") for value in (2.0, False, "2", 0)],
        ({"mesh": 5}, "a Mesh"),
        ({"plan": 5}, "a plan"),
        ({"decode": 5}, "FFN/ATTENTION"),
        ({"prefill": ("ws2d", "heads")}, "FFN/ATTENTION"),
        ({"dtype": 16}, "auto, f32, bf16"),
        ({"kv": 8}, "int8"),
        ({"model": 5}, "the path or the name of a model"),
    ],
    ids=str,
)
def test_arguments_of_another_type_are_refused_by_name(given: dict[str, Any], accepted: str):
    arguments: dict[str, Any] = {"model": "nothing-of-this-name"} | given
    with pytest.raises(InputError, match=accepted) as error:
        Engine.load(**arguments)
    assert error.value.field == next(iter(given))


def test_whole_numbers_of_numpy_are_taken():
    given: dict[str, Any] = {"chunk": np.int64(3), "devices": np.uint8(2)}
    assert EngineRequest(**given) == EngineRequest(chunk=3, devices=2)


@pytest.mark.parametrize(
    ("environment", "meshes"),
    [
        ({}, [4, 2, 1]),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}, [2, 1, 4]),
        full(({"JAX_NUM_CPU_DEVICES": "4"}, [2, 1, 4])),
    ],
    ids=str,
)
def test_cpu_devices_are_made_once_and_as_many_as_the_user_says(
    environment: dict[str, str], meshes: list[int]
):
    """In a process of its own, where nothing has asked JAX for devices yet."""
    code = f"""
import jax
from partita.engine.devices import devices_for
from partita.errors import InputError
found = [len(devices_for(count)) for count in {meshes}]
try:
    devices_for(5)
except InputError as error:
    print(*found, jax.device_count(), error)
"""
    ours = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    kept = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **ours, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    counts = " ".join(map(str, [*meshes, 4]))
    refused = "mesh: 5 chips: up to 4 are accepted: JAX has so many cpu devices, and makes no more once it "
    assert ran.stdout.strip() == f"{counts} {refused}runs; start Python with JAX_NUM_CPU_DEVICES=5"


PLANNED = Formats(weights="int8", activations="bf16", kv="bf16", reduce="bf16")


@pytest.mark.parametrize(
    ("asked", "platform", "planned", "expected"),
    [
        (("auto", None, None), "cpu", None, ("f32", "f32", "f32", "f32")),
        (("auto", None, None), "tpu", None, ("bf16", "bf16", "bf16", "f32")),
        (("bf16", "int8", None), "cpu", None, ("int8", "bf16", "bf16", "f32")),
        (("f32", "int8", "int8"), "gpu", None, ("int8", "f32", "int8", "f32")),
        (("auto", None, None), "tpu", PLANNED, ("int8", "bf16", "bf16", "bf16")),
        (("auto", None, None), "gpu", Formats.all_in("f32"), ("f32", "f32", "f32", "f32")),
        (("auto", None, "int8"), "cpu", PLANNED, ("int8", "f32", "int8", "f32")),
    ],
)
def test_formats(
    asked: tuple[str, str | None, str | None], platform: str, planned: Formats | None, expected: tuple
):
    found = number_formats(*asked, platform, planned)
    assert (found.weights, found.activations, found.kv, found.reduce) == expected


@pytest.mark.parametrize(
    ("asked", "field"),
    [(("f16", None, None), "dtype"), (("f32", "int4", None), "weights"), (("f32", None, "bf16"), "kv")],
)
def test_others_are_refused_by_name(asked: tuple[str, str | None, str | None], field: str):
    with pytest.raises(InputError, match="accepted") as error:
        number_formats(*asked, "cpu")
    assert error.value.field == field
