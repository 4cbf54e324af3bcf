"""Public chat templates with two dozen chats each: text and ids are those of transformers."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints.chats import CHATS, TEMPLATES, digest, write_folder

from partita.checkpoints.tokenizer import Tokenizer
from partita.checkpoints.tokenizer_files import read_tokenizer
from partita.errors import InputError

ROOT = Path(__file__).parents[2]
FIXTURE = json.loads((ROOT / "tests" / "fixtures" / "chat_templates.json").read_text(encoding="utf-8"))
VOCABULARY = 600


def read(folder: Path, template: Path) -> Tokenizer:
    tokenizer = read_tokenizer(write_folder(folder, template), VOCABULARY)
    assert tokenizer is not None
    return tokenizer


def arguments(chat: dict[str, Any]) -> tuple[Any, ...]:
    return chat["messages"], chat.get("tools"), chat.get("documents"), chat.get("variables")


def test_there_are_templates_of_every_kind():
    assert len(TEMPLATES) >= 40
    assert FIXTURE["texts"].keys() == {template.stem for template in TEMPLATES}
    for name in CHATS:  # each is rendered by some
        assert any(texts[name] for texts in FIXTURE["texts"].values())


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_the_text_is_that_of_transformers(template: Path, tmp_path: Path):
    tokenizer = read(tmp_path / "folder", template)
    assert tokenizer.add_bos
    for name, chat in CHATS.items():
        expected = FIXTURE["texts"][template.stem][name]
        if expected is None:
            with pytest.raises(InputError):
                tokenizer.chat(*arguments(chat))
        else:
            assert digest(tokenizer.chat(*arguments(chat))) == expected, name


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")  # those of transformers are not ours to mend
@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_the_ids_are_those_of_transformers(template: Path, tmp_path: Path):
    pytest.importorskip("transformers")
    tokenizer = read(tmp_path / "folder", template)
    script = oracle_script()
    oracle = script.tokenizer_of(tmp_path / "folder")
    for name, chat in CHATS.items():
        expected = script.rendered(oracle, chat, return_dict=False)
        if expected is None:
            with pytest.raises(InputError):
                tokenizer.chat_ids(*arguments(chat))
        else:
            assert tokenizer.chat_ids(*arguments(chat)) == expected, name


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_transformers_gives_the_fixture():
    pytest.importorskip("transformers")
    assert oracle_script().make()["texts"] == FIXTURE["texts"]


def oracle_script() -> Any:
    spec = importlib.util.spec_from_file_location("chat_fixture", ROOT / "scripts" / "make_chat_fixture.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script
