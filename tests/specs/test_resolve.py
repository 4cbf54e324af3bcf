"""What MODEL may be: a name, a folder, a file; and what is said of anything else."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from partita.errors import InputError
from partita.specs import Model, catalogue_model, resolve_model

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 256,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def test_names_and_aliases_of_the_catalogue():
    assert resolve_model("palm-540b") is catalogue_model("palm-540b")
    assert resolve_model("LLaMA3-70B") is catalogue_model("llama-3-70b")


def test_a_folder_and_its_configuration_are_the_same_model(folder: Path):
    model = resolve_model(str(folder))
    assert (model.name, model.d_model, model.kv_heads) == ("tiny", 64, 4)
    assert resolve_model(str(folder / "config.json")) == model


def test_a_file_goes_to_the_reader_of_its_suffix(tmp_path: Path):
    path = tmp_path / "some.GGUF"
    path.touch()
    asked: list[Path] = []

    def reader(file: Path) -> Model:
        asked.append(file)
        return catalogue_model("smollm2-135m")

    assert resolve_model(str(path), readers={".gguf": reader}).name == "smollm2-135m"
    assert asked == [path]


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    for name in ("config.json", "some.gguf"):
        with pytest.raises(InputError, match=f"{name}: there is no such file"):
            resolve_model(str(tmp_path / name), readers={".gguf": lambda _: catalogue_model("palm-8b")})


def test_a_folder_without_a_configuration_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"has no config\.json"):
        resolve_model(str(tmp_path))


def test_anything_else_is_unknown_with_what_is_near_and_what_is_accepted():
    with pytest.raises(InputError) as caught:
        resolve_model("palm-540", readers={".gguf": lambda _: catalogue_model("palm-8b")})
    assert (caught.value.field, caught.value.value) == ("model", "palm-540")
    assert caught.value.message.startswith("unknown; did you mean palm-540b? accepted: palm-8b, ")
    assert caught.value.message.endswith("; or a folder with a config.json, a .gguf file")


def test_a_kind_of_file_without_a_reader_is_not_promised():
    with pytest.raises(InputError, match=r"; or a folder with a config.json$"):
        resolve_model("weights.gguf")


@given(st.text() | st.from_regex(r"~?/?\w*\.json", fullmatch=True))
@example("~")
def test_any_text_is_refused_in_words(text: str):
    """A null byte makes sure that no text happens to be a file here."""
    with pytest.raises(InputError, match=r"unknown|no such file"):
        resolve_model(text + "\0")
