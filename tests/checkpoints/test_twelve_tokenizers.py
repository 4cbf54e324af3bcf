"""300 texts on 12 tokenizers: ids, and text whole and by token, are those of the `tokenizers` library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.checkpoints.twelve_tokenizers import TWELVE, texts
from tokenizers import Tokenizer as Backend

from partita.checkpoints.tokenizer_files import read_tokenizer, write_tokenizer

TEXTS = texts(300)


@pytest.mark.parametrize("name", TWELVE)
def test_ids_and_text_equal_those_of_the_library(name: str, tmp_path: Path):
    backend = TWELVE[name]()
    backend.save(str(tmp_path / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    library = Backend.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer = read_tokenizer(tmp_path, library.get_vocab_size())
    assert tokenizer is not None
    assert tokenizer.add_bos == (name in ("llama2", "llama3"))
    rewritten = tmp_path / "rewritten"
    rewritten.mkdir()
    write_tokenizer(tokenizer, rewritten)
    again = read_tokenizer(rewritten, library.get_vocab_size())
    assert again is not None
    for number, text in enumerate(TEXTS):
        ids = library.encode(text).ids
        twice = ids[:2] == [tokenizer.bos_id] * 2  # one of the text's own is enough
        found = tokenizer.encode(text)
        assert found == (ids[1:] if tokenizer.add_bos and twice else ids)
        if number % 6 == 0:
            assert again.encode(text) == found
        for show in (False, True):
            whole = library.decode(found, skip_special_tokens=not show)
            stream = tokenizer.stream(show)
            assert "".join([*map(stream.push, found), stream.end()]) == whole
            assert tokenizer.decode(found, show_special=show) == whole


def test_the_texts_are_of_many_kinds():
    everything = "".join(TEXTS)
    assert len(set(TEXTS)) > 290
    assert len(set(everything)) > 150
    assert all(kind in everything for kind in ("<|im_end|>", "👩‍💻", "\r\n", "def ", "\0", "    "))
