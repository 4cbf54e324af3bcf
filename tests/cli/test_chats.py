"""Chats on the command line: options and files to messages, and what does not stop a run without a chat."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.checkpoints import tiny_gguf
from tests.cli.conftest import Partita

from partita.checkpoints.open import open_checkpoint
from partita.cli.prompts import prompt_of, read_chat
from partita.errors import InputError

# The tiny vocabulary spells a, b, c, d, 1 to 4 and <end>.
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}1{% elif m.role == 'tool' %}3{% endif %}"
    "{{ m.content }}<end>{% endfor %}{% if thinking %}2{% endif %}{% for t in tools or [] %}4{% endfor %}"
    "{% for t in documents or [] %}d{% endfor %}"
)


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chatty") / "chatty.gguf"
    return tiny_gguf.write(path, {"tokenizer.chat_template": TEMPLATE})


def text_of(path: Path, **options: Any) -> str:
    """What the options make of the model's template, in text."""
    given = {"prompt": None, "chat": False, "system": None, "messages": None, "variables": None}
    chat = read_chat(**{**given, **options})
    checkpoint = open_checkpoint(str(path))
    ids, shown = prompt_of(checkpoint, options.get("prompt"), None, chat)
    assert shown == ""
    assert checkpoint.tokenizer is not None
    return checkpoint.tokenizer.decode(ids, show_special=True)


def test_a_prompt_with_a_system_turn_and_variables(chatty: Path):
    assert text_of(chatty, prompt="ab", chat=True) == "ab<end>"
    assert text_of(chatty, prompt="ab", system="cd") == "1cd<end>ab<end>"
    assert text_of(chatty, prompt="ab", chat=True, variables='{"thinking": true, "self": 1}') == "ab<end>2"


def test_several_turns_from_a_file(chatty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    turns = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    turns += [{"role": "tool", "content": [{"type": "text", "text": "c"}]}]
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(turns), encoding="utf-8")
    assert text_of(chatty, messages=str(file)) == "1a<end>b<end>3c<end>"
    assert text_of(chatty, messages=str(file), chat=True, variables='{"thinking": 1}').endswith("2")
    body = {"messages": turns[:1], "tools": [{"type": "function"}] * 2, "documents": [{"title": "x"}]}
    body |= {"chat_template_kwargs": {"thinking": True}, "model": "x", "temperature": 1}
    file.write_text(json.dumps(body), encoding="utf-8")
    assert text_of(chatty, messages=str(file)) == "1a<end>244d"
    assert "without effect in" in capsys.readouterr().err
    assert text_of(chatty, messages=str(file), variables='{"thinking": false}') == "1a<end>44d"


def test_a_chat_from_standard_input(chatty: Path, monkeypatch: pytest.MonkeyPatch):
    raw = io.BytesIO(b'[{"role": "user", "content": "ab"}]')
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=raw))
    assert text_of(chatty, messages="-") == "ab<end>"


def test_no_bos_is_put_before_a_chat(tmp_path: Path):
    """Whatever the file says of plain prompts."""
    path = tiny_gguf.write(
        tmp_path / "bos.gguf", {"tokenizer.chat_template": TEMPLATE, "tokenizer.ggml.add_bos_token": True}
    )
    tokenizer = open_checkpoint(str(path)).tokenizer
    assert tokenizer is not None
    assert tokenizer.encode("ab") == [11, 8]
    assert tokenizer.chat_ids([{"role": "user", "content": "ab"}]) == [8, 11]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"prompt": "ab", "messages": "x"}, "prompt"),
        ({"system": "ab", "messages": "x"}, "system"),
        ({"system": "ab"}, "system"),
        ({"chat": True}, "chat"),
        ({"prompt": "ab", "variables": "{}"}, "chat-template-kwargs"),
        ({"prompt": "ab", "chat": True, "variables": "[1]"}, "chat-template-kwargs"),
        ({"prompt": "ab", "chat": True, "variables": "{thinking: 1}"}, "chat-template-kwargs"),
        ({"prompt": "ab", "chat": True, "variables": '{"tools": []}'}, "chat_template_kwargs"),
        ({"messages": "/no/such/file"}, "messages"),
        ({"messages": "a\0b"}, "messages"),
    ],
)
def test_options_that_do_not_go_together(chatty: Path, options: dict[str, Any], field: str):
    with pytest.raises(InputError) as caught:
        text_of(chatty, **options)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (b"", "messages"),
        (b"\xff", "messages"),
        (b"[" * 100_000, "messages"),
        (b'"hi"', "messages"),
        (b'{"role": "user"}', "messages"),
        (b"[]", "messages"),
        (b"[5]", "messages[0]"),
        (b'{"messages": [{"role": "user", "content": 5}]}', "messages[0]"),
        (b'{"messages": [{"role": "user", "content": "a"}], "tools": {}}', "tools"),
        (b'{"messages": [{"role": "user", "content": "a"}], "documents": [1]}', "documents[0]"),
        (b'{"messages": [], "chat_template_kwargs": 3}', "chat_template_kwargs"),
    ],
)
def test_a_file_that_holds_no_chat_is_one_line(chatty: Path, tmp_path: Path, content: bytes, field: str):
    file = tmp_path / "chat.json"
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        text_of(chatty, messages=str(file))
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("template", ["{% if %}", "{{ 'x' * 10**10 }}", 5])
def test_a_template_that_is_not_understood_stops_chats_only(
    partita: Partita, tmp_path: Path, template: object
):
    path = tiny_gguf.write(tmp_path / "broken.gguf", {"tokenizer.chat_template": template})
    run = ("generate", path, "--max-tokens", 1, "--json")
    refused = partita(*run, "--prompt", "ab", "--chat")
    assert refused.code == 2
    assert json.loads(refused.out)["error"]["field"] == "tokenizer.chat_template"
    shown = partita("models", path)
    assert shown.code == 0
    assert "\nchat template: cannot be used (" in shown.out
    if template == "{% if %}":
        text, ids = (partita(*run, *given).json for given in (("--prompt", "ab"), ("--prompt-ids", "8")))
        assert text["tokens"] == ids["tokens"]


def test_models_shows_what_ends_a_text_and_why(partita: Partita, chatty: Path):
    found = partita("models", chatty, "--json").json
    assert found["vocabulary"] == 12
    assert found["tokenizer"] == {
        "tokens": 12,
        "bos": {"token": 11, "text": "<end>"},
        "adds_bos": False,
        "chat_template": True,
        "chat_template_problem": None,
        "problem": None,
    }
    reasons = ["tokenizer.ggml.eos_token_id", "chat template's turn end"]
    assert found["ends"] == [{"token": 11, "text": "<end>", "reasons": reasons}]
    (line,) = [line for line in partita("models", chatty).out.splitlines() if line.startswith("<end>")]
    assert line.split(maxsplit=2) == ["<end>", "11", "; ".join(reasons)]


def test_models_shows_a_model_that_has_no_tokenizer(partita: Partita, config: Path):
    found = partita("models", config, "--json").json
    assert (found["tokenizer"], found["ends"]) == (None, [])
    (config / "generation_config.json").write_text('{"eos_token_id": [7]}', encoding="utf-8")
    found = partita("models", config, "--json").json
    assert found["ends"] == [{"token": 7, "text": None, "reasons": ["generation_config.json, eos_token_id"]}]
    control = [{"id": 5, "content": "<|im_end|>", "special": True}, {"id": -1, "content": 3, "special": True}]
    for refused, ends in (({}, [7]), ({"added_tokens": [*control, 5, {}]}, [7, 5])):
        (config / "tokenizer.json").write_text(json.dumps(refused), encoding="utf-8")
        found = partita("models", config, "--json").json
        assert found["tokenizer"].keys() == {"problem"}
        assert [end["token"] for end in found["ends"]] == ends
    assert partita("models", "palm-540b").code == 0
    assert partita("models", "no-such-model").code == 2
