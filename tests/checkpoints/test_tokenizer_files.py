"""Tokenizers of folders: text as the tokenizers library has it, special tokens, chat templates."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from partita.checkpoints.tokenizer import Tokenizer
from partita.checkpoints.tokenizer_files import read_tokenizer, write_tokenizer
from partita.errors import InputError

VOCABULARY = 300


def byte_level() -> Backend:
    """As GPT-2, Llama 3, Qwen and Falcon are: a token for each byte, and one merge."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)} | {"ab": 256}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])  # 257, 258
    return backend


def sentencepiece(prefix: bool) -> Backend:
    """As Llama 2 is (with a prefix) and Gemma (without): pieces, and bytes for what they cannot spell."""
    pieces = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "ab"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("a", "b")]
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, fuse_unk=True))
    steps = [normalizers.Replace(" ", "▁")]
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *steps] if prefix else steps)
    join = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*join, decoders.Strip(" ", 1, 0)] if prefix else join)
    backend.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    return backend


BACKENDS = {
    "bytes": byte_level,
    "pieces": lambda: sentencepiece(prefix=False),
    "pieces after a space": lambda: sentencepiece(prefix=True),
}


def save(folder: Path, backend: Backend, settings: Any = None, **files: Any) -> Path:
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    for name, content in {"tokenizer_config": settings, **files}.items():
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def read(folder: Path) -> Tokenizer:
    tokenizer = read_tokenizer(folder, VOCABULARY)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    root = tmp_path_factory.mktemp("tokenizers")
    return {name: read(save(root / name, make())) for name, make in BACKENDS.items()}


@pytest.mark.parametrize("kind", BACKENDS)
@given(text=st.text(st.sampled_from("ab c🌙é\n<s>▁"), max_size=12))
def test_text_and_ids_equal_those_of_the_library(tokenizers: dict[str, Tokenizer], kind: str, text: str):
    tokenizer = tokenizers[kind]
    ids = tokenizer.encode(text)
    assert ids == tokenizer.backend.encode(text, add_special_tokens=False).ids
    decoded = tokenizer.decode(ids, show_special=True)
    assert decoded == tokenizer.backend.decode(ids, skip_special_tokens=False)
    if kind == "bytes" or not {"▁", "<"} & set(text):  # a prefix goes before what follows a special token
        assert decoded == text


def test_a_streamed_text_keeps_the_space_it_goes_on_with(tokenizers: dict[str, Tokenizer]):
    tokenizer = tokenizers["pieces after a space"]
    ids, before = tokenizer.encode("ab 🌙"), tokenizer.encode("ab")
    for after, text in ((before, " ab 🌙"), ([], "ab 🌙")):
        stream = tokenizer.stream(after=after)
        assert "".join([*map(stream.push, ids), stream.end()]) == text
    assert tokenizer.decode(ids) == "ab 🌙"


def test_ids_of_the_model_without_a_token_are_no_text(tokenizers: dict[str, Tokenizer]):
    assert len(tokenizers["bytes"].tokens) == VOCABULARY
    assert tokenizers["bytes"].decode([256, 299, 256]) == "abab"


def test_special_tokens_are_hidden_and_known_by_their_names(tmp_path: Path):
    settings = {"bos_token": {"content": "<s>", "special": True}, "eos_token": "</s>", "pad_token": None}
    tokenizer = read(save(tmp_path, byte_level(), settings))
    assert (tokenizer.special, tokenizer.bos_id, tokenizer.eos_ids) == ({257, 258}, 257, {258})
    assert not tokenizer.add_bos
    ids = tokenizer.encode("ab<s>ab</s>")
    assert ids == [256, 257, 256, 258]
    assert tokenizer.decode(ids) == "abab"


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({}, {258}),
        ({"config": {"eos_token_id": 7}}, {7, 258}),
        ({"config": {"eos_token_id": None, "text_config": {"eos_token_id": 9}}}, {9, 258}),
        ({"config": {"eos_token_id": 7}, "generation_config": {"eos_token_id": [8, 9]}}, {8, 9, 258}),
        ({"config": {"eos_token_id": 7}, "generation_config": {"eos_token_id": None}}, {7, 258}),
    ],
)
def test_the_tokens_that_end_a_text(files: dict[str, Any], ends: set[int], tmp_path: Path):
    assert read(save(tmp_path, byte_level(), {"eos_token": "</s>"}, **files)).eos_ids == ends


def test_a_bos_token_is_added_where_the_file_adds_one(tmp_path: Path):
    backend = byte_level()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 257)])
    tokenizer = read(save(tmp_path, backend, {"bos_token": "<s>"}))
    assert tokenizer.add_bos
    assert tokenizer.encode("ab") == tokenizer.encode("<s>ab") == [257, 256]


def test_other_additions_are_refused(tmp_path: Path):
    backend = byte_level()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 258)])
    with pytest.raises(InputError, match="post_processor: adds special tokens other than a bos token"):
        read(save(tmp_path, backend, {"bos_token": "<s>"}))


def test_texts_are_neither_cut_nor_filled_up(tmp_path: Path):
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    assert read(save(tmp_path, backend)).encode("ab" * 10) == [256] * 10


def test_merges_are_not_left_out_by_chance(tmp_path: Path):
    backend = byte_level()
    assert isinstance(backend.model, models.BPE)
    backend.model.dropout = 0.5
    tokenizer = read(save(tmp_path, backend))
    assert {tuple(tokenizer.encode("abab")) for _ in range(20)} == {(256, 256)}


HI = [{"role": "user", "content": "hi"}]
TEMPLATE = "{{ bos_token }}{{ messages[0].content }}"


@pytest.mark.parametrize(
    "template", [TEMPLATE, [{"name": "tools", "template": "?"}, {"name": "default", "template": TEMPLATE}]]
)
def test_a_chat_template_in_the_settings(template: Any, tmp_path: Path):
    settings = {"bos_token": "<s>", "chat_template": template}
    assert read(save(tmp_path, byte_level(), settings)).chat(HI) == "<s>hi"


def test_a_chat_template_in_a_file_of_its_own_comes_first(tmp_path: Path):
    folder = save(tmp_path, byte_level(), {"chat_template": "?"}, special_tokens_map={"bos_token": "<s>"})
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    assert read(folder).chat(HI) == "<s>hi"


def test_a_chat_template_for_tools_beside_the_usual_one(tmp_path: Path):
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": TEMPLATE}]
    settings = {"bos_token": "<s>", "chat_template": several}
    before = read(save(tmp_path / "in", byte_level(), settings))
    (tmp_path / "out").mkdir()
    write_tokenizer(before, tmp_path / "out")
    for tokenizer in (before, read(tmp_path / "out")):
        assert (tokenizer.chat(HI), tokenizer.chat(HI, tools=[])) == ("<s>hi", "tools")
    more = tmp_path / "in" / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("of a file", encoding="utf-8")
    assert read(tmp_path / "in").chat(HI) == "of a file"  # files come before settings, all or none


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{% if %}"])
def test_a_chat_template_that_cannot_be_read_stops_chats_alone(content: bytes, tmp_path: Path):
    folder = save(tmp_path / "in", byte_level())
    (folder / "chat_template.jinja").write_bytes(content)
    tokenizer = read(folder)
    assert tokenizer.encode("ab") == [256]
    assert tokenizer.eos_ids == {258}
    with pytest.raises(InputError, match=r"^tokenizer\.chat_template: is not a valid template: [^\n]+$"):
        tokenizer.chat(HI)
    (tmp_path / "out").mkdir()
    write_tokenizer(tokenizer, tmp_path / "out")
    assert read(tmp_path / "out").encode("ab") == [256]


@pytest.mark.parametrize("kind", BACKENDS)
def test_a_written_tokenizer_is_read_the_same(tokenizers: dict[str, Tokenizer], kind: str, tmp_path: Path):
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    backend = BACKENDS[kind]()
    bos = backend.token_to_id("<s>")
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    before = read(save(tmp_path / "in", backend, settings, generation_config={"eos_token_id": [3, 5]}))
    (tmp_path / "out").mkdir()
    write_tokenizer(before, tmp_path / "out")
    after = read(tmp_path / "out")
    assert list(after.tokens) == list(before.tokens)
    fields = ("special", "bos_id", "eos_ids", "add_bos", "prefix")
    assert [getattr(after, field) for field in fields] == [getattr(before, field) for field in fields]
    assert after.encode("ab 🌙<s>a") == before.encode("ab 🌙<s>a")
    assert after.chat(HI) == before.chat(HI) == "<s>hi"


def test_a_folder_without_tokenizer_has_none(tmp_path: Path):
    assert read_tokenizer(tmp_path, VOCABULARY) is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", "is not a tokenizer that can be read"),
        ("tokenizer.json", "{}", "is not a tokenizer that can be read"),
        ("tokenizer_config.json", "[", "is not valid JSON"),
        ("generation_config.json", '{"eos_token_id": "x"}', "must be a token id or a list"),
    ],
)
def test_files_that_cannot_be_read_are_named(name: str, content: str | bytes, message: str, tmp_path: Path):
    save(tmp_path, byte_level())
    raw = content.encode() if isinstance(content, str) else content
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)
