"""How a checkpoint asks to be sampled from: what is taken of its files, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints import tiny_folder, tiny_gguf
from tests.checkpoints.tiny_folder import CONFIGS

from partita.checkpoints.folder import open_folder
from partita.checkpoints.gguf import open_gguf
from partita.checkpoints.protocol import MemoryCheckpoint, random_parameters
from partita.checkpoints.sampling_defaults import sampling_of_folder
from partita.errors import InputError


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({}, {}),
        (  # as published with Qwen2.5-7B-Instruct
            {"do_sample": True, "repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20}
            | {"bos_token_id": 151643, "eos_token_id": [151645, 151643], "transformers_version": "4.37.0"},
            {"repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20},
        ),
        ({"do_sample": True, "top_p": 0.95}, {"temperature": 1.0, "top_p": 0.95}),
        ({"temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9}),
        ({"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"do_sample": True, "temperature": None, "min_p": 0.1}, {"temperature": 1.0, "min_p": 0.1}),
        ({"max_new_tokens": 512, "max_length": 20, "num_beams": 4, "typical_p": 0.5}, {"max_tokens": 512}),
    ],
)
def test_what_a_generation_config_asks_for(
    config: dict[str, Any], settings: dict[str, float], tmp_path: Path
):
    (tmp_path / "generation_config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"temperature": 9}), encoding="utf-8")  # not looked at
    assert sampling_of_folder(tmp_path) == settings


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", "0.7"), ("top_k", 20.5), ("top_p", 0), ("max_new_tokens", -1), ("min_p", [0.1])],
)
def test_what_is_no_setting_is_named_with_its_file(name: str, value: Any, tmp_path: Path):
    (tmp_path / "generation_config.json").write_text(json.dumps({name: value}), encoding="utf-8")
    with pytest.raises(InputError, match=r"generation_config\.json") as error:
        sampling_of_folder(tmp_path)
    assert (error.value.field, error.value.value) == (name, value)
    assert "\n" not in str(error.value)


def test_each_kind_of_checkpoint_says_what_it_asks_for(tmp_path: Path):
    config, model = CONFIGS["llama"]
    folder = tiny_folder.write(tmp_path / "folder", config | {"top_p": 0.9}, tiny_folder.stored("llama")[1])
    assert open_folder(folder).sampling == {"top_p": 0.9}  # an older file has them in config.json
    (folder / "generation_config.json").write_text('{"temperature": 0.5}', encoding="utf-8")
    assert open_folder(folder).sampling == {"temperature": 0.5}
    keys = {"temp": 0.7, "top_k": 40, "top_p": 0.75, "min_p": 0.25, "penalty_repeat": 1.25, "mirostat": 0}
    file = tiny_gguf.write(tmp_path / "a.gguf", {f"general.sampling.{key}": v for key, v in keys.items()})
    assert open_gguf(file).sampling == {
        **{"temperature": 0.7, "top_k": 40, "top_p": 0.75, "min_p": 0.25, "repetition_penalty": 1.25}
    }
    assert MemoryCheckpoint(model, random_parameters(model, 0)).sampling == {}
    wrong = tiny_gguf.write(tmp_path / "b.gguf", {"general.sampling.top_k": -7})
    with pytest.raises(InputError, match=r"general\.sampling\.top_k"):
        _ = open_gguf(wrong).sampling
