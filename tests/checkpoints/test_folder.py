"""Folders in Hugging Face form: every family's parameters by our names, and what is refused."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoints import tiny_folder
from tests.checkpoints.tiny_folder import CONFIGS

from partita.checkpoints.folder import open_folder
from partita.checkpoints.open import open_checkpoint
from partita.errors import InputError
from partita.specs.parameters import all_parameters
from partita.specs.resolve import resolve_model

LLAMA_CONFIG = CONFIGS["llama"][0]


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("family", CONFIGS)
def test_parameters_come_back_as_their_family_stores_them(family: str, files: int, tmp_path: Path):
    parameters, tensors = tiny_folder.stored(family)
    config, model = CONFIGS[family]
    checkpoint = open_checkpoint(str(tiny_folder.write(tmp_path / "tiny", config, tensors, files)))
    assert checkpoint.model == model
    assert checkpoint.quantised == frozenset()
    assert set(parameters) == set(all_parameters(model))
    for name, expected in parameters.items():
        found = checkpoint.read(name)
        assert (found.dtype, found.flags.c_contiguous) == (np.float32, True)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7, err_msg=name)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("families")
    return {
        family: tiny_folder.write(root / family, CONFIGS[family][0], tiny_folder.stored(family)[1])
        for family in CONFIGS
    }


@given(family=st.sampled_from(list(CONFIGS)), data=st.data())
def test_any_slice_equals_that_of_the_whole(folders: dict[str, Path], family: str, data: st.DataObject):
    checkpoint = open_folder(folders[family])
    shapes = {name: row.shape for name, row in all_parameters(checkpoint.model).items()}
    name = data.draw(st.sampled_from(list(shapes)))
    ends = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shapes[name]]
    index = tuple(slice(*pair) for pair in ends)
    np.testing.assert_array_equal(checkpoint.read(name, index), checkpoint.read(name)[index])


def test_a_whole_file_is_read_whatever_an_index_beside_it_says(tmp_path: Path):
    """As transformers does: an index may be left from the shards that were merged to the file."""
    parameters, tensors = tiny_folder.stored("llama")
    folder = tiny_folder.write(tmp_path, LLAMA_CONFIG, tensors)
    stale = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "model-00001-of-00002.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(stale), encoding="utf-8")
    np.testing.assert_array_equal(open_folder(folder).read("embed"), parameters["embed"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "in 4 bits, packed by awq: "),
        ({"quant_method": "gptq", "bits": 8}, "in 8 bits, packed by gptq: "),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "in 4 bits, packed by bitsandbytes: "),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "packed by fp8: "),
        ({"bits": "four"}, "packed by an unnamed method: "),
    ],
)
def test_packed_weights_are_planned_and_said_not_to_run(given: dict[str, Any], words: str, tmp_path: Path):
    _, tensors = tiny_folder.stored("llama")
    folder = tiny_folder.write(tmp_path, {**LLAMA_CONFIG, "quantization_config": given}, tensors)
    assert resolve_model(str(folder)).d_model == CONFIGS["llama"][1].d_model
    with pytest.raises(InputError, match=f"^quantization_config: {words}such weights are not run") as error:
        open_folder(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_other_number_formats_become_float32(dtype: Any, tmp_path: Path):
    parameters, tensors = tiny_folder.stored("llama")
    tensors = {name: tensor.astype(dtype) for name, tensor in tensors.items()}
    checkpoint = open_folder(tiny_folder.write(tmp_path, LLAMA_CONFIG, tensors))
    for name, values in parameters.items():
        np.testing.assert_array_equal(checkpoint.read(name), values.astype(dtype).astype(np.float32))


@pytest.mark.parametrize(
    ("family", "old", "new"),
    [
        ("llama", "model.", ""),
        ("gpt2", "transformer.", ""),
        ("gpt_neox", "gpt_neox.", ""),
        ("gemma3", "model.", "language_model.model."),
        ("gemma3", "model.", "model.language_model."),
    ],
)
def test_names_with_other_beginnings_are_known(family: str, old: str, new: str, tmp_path: Path):
    parameters, tensors = tiny_folder.stored(family)
    tensors = {
        new + name.removeprefix(old) if name.startswith(old) else name: t for name, t in tensors.items()
    }
    if family == "gemma3":
        tensors["vision_tower.patch.weight"] = np.zeros(3, np.float32)
    checkpoint = open_folder(tiny_folder.write(tmp_path, CONFIGS[family][0], tensors))
    np.testing.assert_array_equal(checkpoint.read("layers.1.o"), parameters["layers.1.o"])


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        ("gpt_neox", "gpt_neox.layers.2.attention.masked_bias"),
        ("gpt_neox", "gpt_neox.layers.2.attention.bias"),
        ("gpt2", "transformer.h.1.attn.bias"),
    ],
)
def test_tables_that_change_nothing_are_let_pass(family: str, name: str, tmp_path: Path):
    tensors = tiny_folder.stored(family)[1] | {name: np.zeros((1, 5), np.uint8)}
    open_folder(tiny_folder.write(tmp_path, CONFIGS[family][0], tensors))


def test_a_tied_unembedding_may_be_there_if_it_is_the_embedding(tmp_path: Path):
    config, _ = CONFIGS["qwen2"]
    _, tensors = tiny_folder.stored("qwen2")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    checkpoint = open_folder(tiny_folder.write(tmp_path, config, tensors))
    assert checkpoint.model.tied_embedding
    tensors["lm_head.weight"][16, 11] += 1
    with pytest.raises(InputError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        open_folder(tiny_folder.write(tmp_path, config, tensors))


def refused(folder: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        open_folder(folder)
    assert "\n" not in str(caught.value)
    return caught.value


def test_all_wrong_tensors_are_named_in_one_error(tmp_path: Path):
    _, tensors = tiny_folder.stored("llama")
    del tensors["model.layers.0.self_attn.q_proj.weight"]
    tensors["model.layers.1.mlp.up_proj.weight"] = np.zeros((14, 13), np.float32)
    tensors |= {f"model.layers.{i}.self_attn.q_proj.bias": np.zeros(24, np.float32) for i in range(5)}
    error = refused(tiny_folder.write(tmp_path, LLAMA_CONFIG, tensors))
    assert (error.field, error.value) == ("model", str(tmp_path))
    for part in (
        "lacks model.layers.0.self_attn.q_proj.weight;",
        "model.layers.1.mlp.up_proj.weight ((14, 13), expected (14, 12))",
        "'model.layers.0.self_attn.q_proj.bias'",
        "and 2 more",
    ):
        assert part in error.message


def test_formats_of_other_kinds_are_refused_by_name(tmp_path: Path):
    _, tensors = tiny_folder.stored("llama")
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].astype(np.int8)
    error = refused(tiny_folder.write(tmp_path, LLAMA_CONFIG, tensors))
    assert f"stores {name} as I8; accepted formats are F64, F32, F16, BF16" in error.message


def test_a_config_that_gives_other_sizes_is_refused(tmp_path: Path):
    _, tensors = tiny_folder.stored("llama")
    error = refused(tiny_folder.write(tmp_path, {**LLAMA_CONFIG, "num_hidden_layers": 4}, tensors))
    assert "lacks model.layers.3.input_layernorm.weight" in error.message


def test_a_family_that_is_only_planned_is_named(tmp_path: Path):
    _, tensors = tiny_folder.stored("llama")
    extra = {
        "kv_lora_rank": 4,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 2,
        "v_head_dim": 4,
        "head_dim": None,
    }
    config = {**LLAMA_CONFIG, **extra, "num_key_value_heads": 6, "model_type": "minicpm3"}
    error = refused(tiny_folder.write(tmp_path, config, tensors))
    assert (error.field, error.value) == ("model_type", "minicpm3")
    assert "can be planned, but its weights are not read" in error.message


def test_what_a_folder_lacks_is_said(tmp_path: Path):
    assert "has no config.json" in refused(tmp_path).message
    (tmp_path / "config.json").write_text("{")
    assert "is not valid JSON" in refused(tmp_path).message
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    assert "has no model.safetensors" in refused(tmp_path).message
    (tmp_path / "pytorch_model.bin").touch()
    assert "only pytorch_model.bin, which is not read" in refused(tmp_path).message


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda places: "{", "is not valid JSON"),
        (lambda places: json.dumps({"weight_map": [1]}), "must hold a weight_map"),
        (
            lambda places: json.dumps({"weight_map": {**places, "lm_head.weight": "gone.safetensors"}}),
            "names files that are not there: gone.safetensors",
        ),
        (
            lambda places: json.dumps({"weight_map": {**places, "lm_head.weight": "../x.safetensors"}}),
            "names files outside its folder: ../x.safetensors",
        ),
        (
            lambda places: json.dumps({"weight_map": {**places, "what": places["lm_head.weight"]}}),
            "lists what is not there: what in model-0000",
        ),
        (
            lambda places: json.dumps(
                {"weight_map": {k: v for k, v in places.items() if k != "lm_head.weight"}}
            ),
            "does not list lm_head.weight in model-0000",
        ),
    ],
)
def test_a_wrong_index_is_refused(change: Any, message: str, tmp_path: Path):
    tiny_folder.write(tmp_path, LLAMA_CONFIG, tiny_folder.stored("llama")[1], files=2)
    places = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    (tmp_path / INDEX).write_text(change(places))
    error = refused(tmp_path)
    assert error.value == str(tmp_path / INDEX)
    assert message in error.message
