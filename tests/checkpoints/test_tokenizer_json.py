"""What a tokenizer.json asks for that is not done: refused in one line, before it costs anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints.test_tokenizer_files import byte_level, save
from tests.sizes import full
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers

from partita.checkpoints import tokenizer_json
from partita.checkpoints.tokenizer import Tokenizer
from partita.checkpoints.tokenizer_files import read_tokenizer
from partita.errors import InputError

VOCABULARY = 259  # 256 bytes, "ab" and two special tokens


def read(folder: Path, form: Any, vocabulary: int = VOCABULARY) -> Tokenizer:
    text = form if isinstance(form, str) else json.dumps(form)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    tokenizer = read_tokenizer(folder, vocabulary)
    assert tokenizer is not None
    return tokenizer


def form() -> dict[str, Any]:
    return json.loads(byte_level().to_str())


def refusal(folder: Path, form: Any, capfd: pytest.CaptureFixture[str]) -> InputError:
    with pytest.raises(InputError) as caught:
        read(folder, form)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
    return caught.value


@pytest.mark.parametrize("number", [VOCABULARY + 2, 4 * 10**8, 4 * 10**9, 2**70])
def test_an_id_far_beyond_the_model(number: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    added = form()
    added["added_tokens"][0]["id"] = number
    error = refusal(tmp_path, added, capfd)
    assert (error.field, error.value) == ("token", number)
    assert "beyond the model's vocabulary, of 259" in str(error)
    own = form()
    own["model"]["vocab"]["ab"] = number
    assert refusal(tmp_path, own, capfd).field == ("token" if number < 2**32 else "model")


def test_a_token_that_the_model_lacks_is_refused_where_a_text_has_it(tmp_path: Path):
    """Gemma 3 1B's tokenizer has a token for images, one beyond the vocabulary of the model."""
    tokenizer = read(tmp_path, form(), vocabulary=VOCABULARY - 1)
    assert tokenizer.encode("ab") == [256]
    with pytest.raises(
        InputError, match="prompt: </s>: is a token of the tokenizer, but not one of the model"
    ):
        tokenizer.encode("ab</s>")


def test_an_added_token_that_the_library_renumbers(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    changed = form()
    changed["added_tokens"][1]["id"] = VOCABULARY
    error = refusal(tmp_path, changed, capfd)
    assert (error.field, error.value) == ("added_tokens", "</s>")
    assert "its id is 259 in the file and 258 to the library" in str(error)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("(a+)+$", "a" * 40 + "b"), ("(a|a)*$", "a" * 40 + "b"), (r"(\s|\s)*$", " " * 40 + "y")],
)
def test_a_pattern_without_end(pattern: str, text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """The library panics at it, with a stack trace: here it is one line, about that text."""
    backend = byte_level()
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), to_bytes]
    )
    tokenizer = read(save(tmp_path, backend), backend.to_str())
    assert tokenizer.encode("ab") == [256]
    with pytest.raises(
        InputError, match=r"prompt: .*: cannot be split by the model's tokenizer, whose pattern"
    ):
        tokenizer.encode(text)
    assert capfd.readouterr() == ("", "")
    assert tokenizer.encode("ab") == [256]


def test_a_pattern_that_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    backend = byte_level()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+\s+\d"), "isolated")
    tokenizer = read(tmp_path, backend.to_str())
    monkeypatch.setattr("partita.checkpoints.tokenizer_library._MOST_SECONDS", 0.05)
    with pytest.raises(InputError, match="takes longer than 0\\.05 seconds"):
        tokenizer.encode(" " * 700)


@pytest.mark.parametrize(
    ("part", "value", "field", "message"),
    [
        ("decoder", decoders.Strip(" ", 0, 1), "decoder", "fails on texts that are empty"),
        (
            "normalizer",
            normalizers.Sequence([normalizers.Replace("a", "aaaaaaaaaa")] * 9),
            "normalizer",
            "more than 256 times as long",
        ),
        (
            "decoder",
            decoders.Sequence([decoders.Replace("a", "aaaaaaaaaa")] * 9),
            "decoder",
            "more than 256 times as long",
        ),
        ("normalizer", normalizers.Replace("", "a"), "normalizer", "pattern of 1 or more characters"),
    ],
)
def test_steps_that_do_harm(
    part: str, value: Any, field: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    backend = byte_level()
    setattr(backend, part, value)
    error = refusal(tmp_path, backend.to_str(), capfd)
    assert error.field == field
    assert message in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "3", "{", '{"a"}', '{"a": 1,', '{"model": 3}', "[" * 100_000, '{"a": ' * 100_000,
        '{"decoder": ' + '{"type": "Sequence", "decoders": [' * 2000,
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_what_is_no_tokenizer(text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    assert "is not a tokenizer that can be read" in str(refusal(tmp_path, text, capfd))


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(tokenizer_json, "_MOST_BYTES", 1000)
    assert "at most 1,000 are read" in str(refusal(tmp_path, form(), capfd))


def test_the_settings_are_found_wherever_the_model_stands(tmp_path: Path):
    (tmp_path / "first.json").write_text(json.dumps({"model": {"vocab": {"a": 1}}, "decoder": None}))
    text, found = tokenizer_json.read_settings(tmp_path / "first.json")
    assert (json.loads(text)["model"], found) == ({"vocab": {"a": 1}}, {"decoder": None})
    backend = byte_level()
    backend.add_tokens([AddedToken('"model": {')])
    (tmp_path / "last.json").write_text(backend.to_str(pretty=True))
    _, found = tokenizer_json.read_settings(tmp_path / "last.json")
    assert found["added_tokens"][-1]["content"] == '"model": {'
    assert found["decoder"]["type"] == "ByteLevel"
    assert "model" not in found


@pytest.mark.parametrize(("first", "count"), [(0, 100), full((100, 900)), full((1000, 1000))])
def test_damaged_tokenizers_are_used_or_refused(first: int, count: int):
    """In a process of its own, which the library could end; nothing is written to standard error."""
    command = [sys.executable, "-m", "tests.checkpoints.fuzz_tokenizers", str(first), str(count)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")
