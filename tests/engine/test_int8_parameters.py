"""int8 parameters on devices: the same bits wherever they were quantised, in little more memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from tests.checkpoints.in_memory import in_int8
from tests.combinations import tiny_model
from tests.engine.bench import replicas_agree

import partita
from partita.checkpoints.folder import open_folder, write_partita_json
from partita.checkpoints.int8 import dequantise
from partita.checkpoints.int8_folder import write_int8
from partita.checkpoints.protocol import Checkpoint, MemoryCheckpoint, random_parameters
from partita.checkpoints.safetensors import TensorToWrite, write_tensors
from partita.engine.engine import Engine
from partita.sharding import Mesh, parse_layout
from partita.specs.formats import Formats
from partita.specs.model import Model
from partita.specs.parameters import all_parameters

CUBE = Mesh.of((2, 2, 2))
INT8 = Formats(weights="int8", activations="f32", kv="f32")
MODEL = tiny_model("GQA", tied=False).model_copy(
    update={"qkv_bias": True, "output_bias": True, "ffn_bias": True}
)


def floats(model: Model) -> MemoryCheckpoint:
    return MemoryCheckpoint(model, random_parameters(model, seed=5))


def placed(checkpoint: Checkpoint, layout: str) -> dict[str, jax.Array]:
    roles = parse_layout(layout, CUBE.axes)
    return Engine(checkpoint, CUBE, roles, roles, formats=INT8).parameters


@pytest.mark.parametrize("decode", ["ws1d/heads", "ws2d/batch", "wg-xyz/batch"])
def test_wherever_weights_are_quantised_they_are_the_same(tmp_path: Path, decode: str):
    write_int8(floats(MODEL), tmp_path / "int8", "f32")
    found = [
        placed(checkpoint, decode)
        for checkpoint in (floats(MODEL), in_int8(floats(MODEL)), open_folder(tmp_path / "int8"))
    ]
    assert sum(array.dtype == np.int8 for array in found[0].values()) == 2 + 5 * MODEL.layers
    for name, array in found[0].items():
        values = replicas_agree(array)
        for other in found[1:]:
            assert other[name].dtype == array.dtype
            np.testing.assert_array_equal(replicas_agree(other[name]), values, err_msg=name)


@pytest.mark.parametrize("number", [0, 7])
@pytest.mark.parametrize("decode", ["ws2d/batch", "wg-xyz/batch"])
def test_a_process_that_holds_a_part_quantises_it_as_whoever_holds_all(
    decode: str, number: int, monkeypatch: pytest.MonkeyPatch
):
    """E is split: what one device holds does not have the largest of every channel; of some dims the last one
    holds nothing but padding."""
    whole = placed(floats(MODEL), decode)
    device = jax.devices()[number]
    monkeypatch.setattr(
        "partita.engine.parameters._held",
        lambda target: [target.sharding.devices_indices_map(target.shape)[device]],
    )
    for checkpoint in (floats(MODEL), in_int8(floats(MODEL))):
        for name, array in placed(checkpoint, decode).items():
            mine, right = (
                next(np.asarray(s.data) for s in each.addressable_shards if s.device == device)
                for each in (array, whole[name])
            )
            np.testing.assert_array_equal(mine, right, err_msg=name)


@pytest.mark.parametrize(("kind", "axis"), [("ffn_in", 1), ("kv", 1), ("q", 2)])
def test_fused_parts_a_hundredfold_apart_keep_their_precision(kind: str, axis: int):
    """Gate and up, keys and values, query heads that share a key."""
    checkpoint = floats(MODEL)
    name = f"layers.1.{kind}"
    exact = checkpoint.parameters[name]
    exact[(slice(None),) * axis + (0,)] /= 100
    found = placed(checkpoint, "ws2d/batch")
    box = tuple(slice(0, n) for n in exact.shape)
    whole = replicas_agree(found[name])[box]
    parameter = all_parameters(MODEL)[name]
    back = dequantise(parameter, whole, replicas_agree(found[f"{name}_scale"])[box[1:]])
    for part in range(exact.shape[axis]):
        a, b = exact.take(part, axis), back.take(part, axis)
        assert 0 < np.linalg.norm(b - a) < 0.01 * np.linalg.norm(a)


LOADING = """
import sys, threading
import jax
jax.config.update("jax_num_cpu_devices", 2)
from pathlib import Path
from partita.checkpoints.folder import open_folder
from partita.engine.engine import Engine
from partita.sharding import Mesh, parse_layout
from partita.specs.formats import Formats

def load(folder):
    formats, roles = Formats(weights="int8", activations="f32", kv="f32"), parse_layout("ws2d/heads", "x")
    return Engine(open_folder(Path(folder)), Mesh("x", (2,)), roles, roles, formats=formats)

def anonymous():
    # of the kernel's count, so that what JAX holds is in it, and the file's own pages are not
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

def watch():
    while not ended.wait(0.0005):
        most[0] = max(most[0], anonymous())

load(sys.argv[1])  # what is imported and made but once
ended, before = threading.Event(), anonymous()
most = [before]
watcher = threading.Thread(target=watch)
watcher.start()
engine = load(sys.argv[2])
ended.set()
watcher.join()
print(sum(array.nbytes for array in engine.parameters.values()), most[0] - before)
"""


def save(folder: Path, **sizes: int) -> dict[str, np.ndarray]:
    """A random model's parameters, which are written to a folder in float32."""
    shape = {"d_model": 512, "heads": 8, "kv_heads": 8, "head_dim": 64, "tied_embedding": True}
    model = Model.model_validate({"name": "synthetic", **shape, **sizes})
    parameters = random_parameters(model, seed=1)
    folder.mkdir()
    write_partita_json(folder, model)
    write_tensors(
        folder, [TensorToWrite(name, v.shape, "f32", lambda v=v: [v]) for name, v in parameters.items()]
    )
    return parameters


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the kernel's count of memory")
def test_loading_holds_no_more_than_a_layer_beside_what_it_makes(tmp_path: Path):
    """111 MB of float32, to 28 MB of int8: most of the host's memory on the way. The embedding is larger than
    a layer."""
    save(tmp_path / "small", layers=1, d_ff=64, vocabulary=64)
    parameters = save(tmp_path / "large", layers=6, d_ff=1408, vocabulary=16_384)
    path = os.pathsep.join([str(Path(partita.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(tmp_path / "small"), str(tmp_path / "large")],
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    held, most = map(int, done.stdout.split())
    layer = sum(values.nbytes for name, values in parameters.items() if name.startswith("layers.0."))
    assert held < 0.26 * sum(values.nbytes for values in parameters.values())
    assert held * 0.9 < most < held + layer
