"""`partita quantize`'s folder: opened as it was written, whole or not at all, with little memory."""

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.checkpoints import stored_forms as forms
from tests.checkpoints import tiny_folder, tiny_gguf
from tests.checkpoints.in_memory import in_int8
from tests.checkpoints.tiny_gguf import WriteGGUF

from partita.checkpoints import int8_folder
from partita.checkpoints.folder import open_folder
from partita.checkpoints.gguf import open_gguf
from partita.checkpoints.int8 import quantise
from partita.checkpoints.int8_folder import write_int8
from partita.checkpoints.open import open_checkpoint
from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
from partita.errors import InputError
from partita.specs.model import LinearScaling, Llama3Scaling, Model, YarnScaling
from partita.specs.parameters import all_parameters


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("family", tiny_folder.CONFIGS)
def test_a_folder_of_every_family_comes_back_in_int8(family: str, dtype: str, tmp_path: Path):
    model = tiny_folder.CONFIGS[family][1]
    checkpoint = MemoryCheckpoint(model, random_parameters(model, seed=4))
    size = write_int8(checkpoint, tmp_path / "out", dtype)
    found = open_checkpoint(str(tmp_path / "out"))
    assert found.model == model
    assert found.tokenizer is None
    assert found.quantised == in_int8(checkpoint).quantised
    kept = ml_dtypes.bfloat16 if dtype == "bf16" else np.float32
    total = 0
    for name, values in checkpoint.parameters.items():
        if name in found.quantised:
            whole, scale = quantise(all_parameters(checkpoint.model)[name], values)
            np.testing.assert_array_equal(found.read_int8(name, ()), whole)
            np.testing.assert_array_equal(found.read_scale(name, ()), scale)
            index = tuple(slice(1, n) for n in values.shape)
            np.testing.assert_array_equal(found.read(name, index), found.read(name)[index])
            total += whole.nbytes + scale.nbytes
        else:
            np.testing.assert_array_equal(found.read(name), values.astype(kept).astype(np.float32))
            total += values.astype(kept).nbytes
    assert size == total


@pytest.mark.parametrize(
    "scaling",
    [
        LinearScaling(factor=2),
        Llama3Scaling(factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position=32),
        YarnScaling(factor=4, original_max_position=16, attention_factor=1.5),
    ],
)
def test_the_scaling_of_positions_comes_back(scaling: Any, tmp_path: Path):
    model = forms.LLAMA.model_copy(update={"rotary_scaling": scaling})
    write_int8(MemoryCheckpoint(model, random_parameters(model, seed=4)), tmp_path / "out")
    assert open_folder(tmp_path / "out").model == model


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("layers.1.q_scale", None, "lacks layers.1.q_scale"),
        (
            "layers.1.q_scale",
            np.zeros((2, 3, 5), np.float32),
            "layers.1.q_scale ((2, 3, 5), expected (2, 3, 4))",
        ),
        ("layers.1.q_scale", np.zeros((2, 3, 4), np.float16), "stores layers.1.q_scale as F16"),
        ("layers.1.norm", np.zeros((1, 12), np.int8), "stores layers.1.norm as I8"),
        ("layers.1.norm_scale", np.zeros(1, np.float32), "'layers.1.norm_scale'"),
        ("layers.1.q", np.zeros((12, 2, 3, 4), np.float32), "'layers.1.q_scale'"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(
    name: str, values: np.ndarray | None, message: str, tmp_path: Path
):
    held = in_int8(MemoryCheckpoint(forms.LLAMA, random_parameters(forms.LLAMA, seed=4)))
    write_int8(held, tmp_path / "out")
    tensors = {**held.parameters, name: values}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    (tmp_path / "out" / "model.safetensors").write_bytes(tiny_folder.safetensors_bytes(kept))
    with pytest.raises(InputError) as caught:
        open_folder(tmp_path / "out")
    assert message in caught.value.message
    assert "\n" not in str(caught.value)


def test_several_files_have_an_index(tmp_path: Path):
    checkpoint = MemoryCheckpoint(forms.LLAMA, random_parameters(forms.LLAMA, seed=4))
    write_int8(checkpoint, tmp_path / "one")
    write_int8(checkpoint, tmp_path / "many", shard_bytes=500)
    files = sorted((tmp_path / "many").glob("*.safetensors"))
    assert len(files) > 5
    for path in files:
        header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
        end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
        assert end <= 500
    one, many = open_folder(tmp_path / "one"), open_folder(tmp_path / "many")
    for name in all_parameters(forms.LLAMA):
        np.testing.assert_array_equal(one.read(name), many.read(name))


def test_int8_is_copied_as_it_is(tmp_path: Path):
    held = in_int8(MemoryCheckpoint(forms.LLAMA, random_parameters(forms.LLAMA, seed=4)))
    write_int8(held, tmp_path / "first")
    write_int8(open_folder(tmp_path / "first"), tmp_path / "again")
    for name in ("model.safetensors", "partita.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    found = open_folder(tmp_path / "again")
    np.testing.assert_array_equal(found.read_int8("layers.2.o", ()), held.read_int8("layers.2.o", ()))


def test_a_tall_matrix_is_quantised_by_blocks_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoint = MemoryCheckpoint(forms.LLAMA, random_parameters(forms.LLAMA, seed=4))
    write_int8(checkpoint, tmp_path / "whole")
    monkeypatch.setattr(int8_folder, "_BLOCK", 5 * forms.LLAMA.d_model)
    write_int8(checkpoint, tmp_path / "blocks")
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "blocks")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_tokenizer_comes_along(write_gguf: WriteGGUF, tmp_path: Path):
    original = open_gguf(write_gguf({"tokenizer.ggml.add_bos_token": True}))
    write_int8(original, tmp_path / "out")
    before, after = original.tokenizer, open_folder(tmp_path / "out").tokenizer
    assert before is not None
    assert after is not None
    assert list(after.tokens) == list(before.tokens)
    assert (after.special, after.bos_id, after.eos_ids, after.add_bos) == (
        before.special,
        before.bos_id,
        before.eos_ids,
        before.add_bos,
    )
    for text in ("abcdc<end>1234", "", "34ab"):
        assert after.encode(text) == before.encode(text)
        assert after.decode(after.encode(text)) == before.decode(before.encode(text))
    chat = [{"role": "user", "content": "ab"}]
    assert after.chat(chat) == before.chat(chat)


def test_what_is_there_is_left_alone(tmp_path: Path):
    checkpoint = MemoryCheckpoint(forms.LLAMA, random_parameters(forms.LLAMA, seed=4))
    (tmp_path / "out").mkdir()
    (tmp_path / "file").write_text("mine")
    for name in ("out", "file"):
        with pytest.raises(InputError, match=f"out: .*{name}: is there already"):
            write_int8(checkpoint, tmp_path / name)
    with pytest.raises(InputError, match=r"out: .*cannot be written: No such file or directory"):
        write_int8(checkpoint, tmp_path / "none" / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoint = MemoryCheckpoint(forms.LLAMA, random_parameters(forms.LLAMA, seed=4))

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"out: .*cannot be written: No space left on device"):
        write_int8(checkpoint, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_whichever_file_does_not_fit_it_is_said_so_and_nothing_is_left(tmp_path: Path):
    """The tokenizer's files among them, which a library makes; a limit on their size stands for a disk."""
    checkpoint = open_checkpoint(str(tiny_gguf.write(tmp_path / "tiny.gguf")))
    assert checkpoint.tokenizer is not None
    write_int8(checkpoint, tmp_path / "out")
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    assert {"tokenizer.json", "model.safetensors", "partita.json", "generation_config.json"} <= sizes.keys()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in sizes.values():
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, before[1]))
            with pytest.raises(InputError, match=r"out: .*cannot be written: File too large"):
                write_int8(checkpoint, tmp_path / "again")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "tiny.gguf"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("final_norm", np.nan, "holds numbers that are not finite"),
        ("final_norm", 3.4e38, "holds 3.4e+38, more than bfloat16 does"),
        ("layers.1.q", -np.inf, "holds numbers that are not finite"),
    ],
)
def test_weights_that_are_not_finite_are_refused_by_name(
    name: str, value: float, message: str, tmp_path: Path
):
    parameters = random_parameters(forms.LLAMA, seed=4)
    parameters[name].flat[3] = value
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        write_int8(MemoryCheckpoint(forms.LLAMA, parameters), tmp_path / "out")
    assert (caught.value.field, caught.value.value) == ("model", name)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from partita.checkpoints.open import open_checkpoint
from partita.checkpoints.int8_folder import write_int8
def progress(done, of):
    if done == of // 2:
        os.kill(os.getpid(), signal.SIGKILL)
write_int8(open_checkpoint(sys.argv[1]), Path(sys.argv[2]), progress=progress)
"""


def test_killed_half_way_there_is_no_folder(tmp_path: Path):
    folder = tiny_folder.write(
        tmp_path / "in", tiny_folder.CONFIGS["llama"][0], tiny_folder.stored("llama")[1]
    )
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(tmp_path / "out")])
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    write_int8(open_folder(folder), tmp_path / "out")
    open_folder(tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "partita-checkpoint-9"}, "has format 'partita-checkpoint-9'; accepted is"),
        ({"model": {"layers": 1}}, "its model does not fit together"),
        ({"model": None}, "its model does not fit together"),
    ],
)
def test_a_changed_description_is_refused(change: dict, message: str, tmp_path: Path):
    write_int8(MemoryCheckpoint(forms.LLAMA, random_parameters(forms.LLAMA, seed=4)), tmp_path / "out")
    path = tmp_path / "out" / "partita.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=message) as caught:
        open_folder(tmp_path / "out")
    assert "\n" not in str(caught.value)


DEEP = Model(
    **{"name": "deep", "layers": 24, "d_model": 256, "d_ff": 640, "heads": 4, "kv_heads": 4, "head_dim": 64},
    **{"vocabulary": 64, "tied_embedding": True, "norm_epsilon": 1e-5, "max_context": 64},
)
"""Layers of 3 MB in float32, 72 MB in all."""
LAYER = 4 * DEEP.layer_parameters


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = {
        **{"model_type": "llama", "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 24},
        **{"num_attention_heads": 4, "vocab_size": 64, "tie_word_embeddings": True, "rms_norm_eps": 1e-5},
        "max_position_embeddings": 64,
    }
    tensors = forms.hf_tensors("llama", DEEP, random_parameters(DEEP, seed=0))
    return tiny_folder.write(tmp_path_factory.mktemp("deep"), config, tensors)


def test_reading_and_writing_need_the_room_of_one_layer(deep: Path, tmp_path: Path):
    checkpoint = open_folder(deep)
    assert checkpoint.model == DEEP.model_copy(update={"name": deep.name})
    tracemalloc.start()
    try:
        for name in all_parameters(DEEP):
            checkpoint.read(name)
        _, reading = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        write_int8(checkpoint, tmp_path / "out")
        _, both = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reading < LAYER
    assert both < 1.5 * LAYER


RESIDENT = """
import resource, sys
from partita.checkpoints.open import open_checkpoint
from partita.specs.parameters import all_parameters
checkpoint = open_checkpoint(sys.argv[1])
names = list(all_parameters(checkpoint.model))
peaks = []
for part in (names[:12], names):
    for name in part:
        checkpoint.read(name)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
print(peaks[1] - peaks[0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pages are let go of on Linux only")
def test_what_was_read_of_a_file_does_not_stay_in_memory(deep: Path):
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT, str(deep)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < LAYER
