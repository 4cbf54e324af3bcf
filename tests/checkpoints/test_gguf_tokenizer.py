"""Tokenizers of GGUF files beyond Llama 3's: SentencePiece by its scores, and other ways of splitting."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.checkpoints.tiny_gguf import TINY as TINY_MODEL
from tests.checkpoints.tiny_gguf import TINY_METADATA, WriteGGUF, stored_tensors

from partita.checkpoints.gguf import open_gguf
from partita.checkpoints.protocol import random_parameters
from partita.checkpoints.tokenizer import Tokenizer
from partita.checkpoints.tokenizer_files import read_tokenizer, write_tokenizer
from partita.errors import InputError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
SCORES = {
    **{"▁": -9.0, "a": -9.1, "b": -9.2, "c": -9.3},
    **{"ab": -3.0, "bc": -2.0, "▁a": -4.0, "abc": -1.0, "▁ab": -1.5, "▁▁": -5.0, "ca": -2.5},
}
SPECIAL = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TOKENS = [*SPECIAL, *BYTES, *SCORES, "  x"]
TYPES = [*SPECIAL.values(), *[BYTE] * 256, *[NORMAL] * len(SCORES), USER_DEFINED]


def write(write_gguf: WriteGGUF, vocabulary: int = 300, **changes: Any) -> Tokenizer:
    without = {key: None for key in TINY_METADATA if key.startswith("tokenizer.")}
    metadata = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    model = TINY_MODEL.model_copy(update={"vocabulary": vocabulary})
    tensors = stored_tensors(model, random_parameters(model, seed=0))
    tokenizer = open_gguf(write_gguf({**without, **metadata}, tensors)).tokenizer
    assert tokenizer is not None
    return tokenizer


def sentencepiece(write_gguf: WriteGGUF, **changes: Any) -> Tokenizer:
    scores = [0.0] * (3 + 256) + [*SCORES.values(), 0.0]
    plain = {"model": "llama", "tokens": TOKENS, "token_type": TYPES, "scores": scores}
    return write(write_gguf, **{**plain, "bos_token_id": 1, "eos_token_id": 2, **changes})


def best_joins(text: str) -> list[int]:
    """The definition: of all neighbours that make a piece, those of the highest score are joined first."""
    pieces = list(text.replace(" ", "▁"))
    while True:
        scores = [SCORES.get(left + right, -math.inf) for left, right in pairwise(pieces)]
        if not scores or max(scores) == -math.inf:
            break
        at = scores.index(max(scores))
        pieces[at : at + 2] = ["".join(pieces[at : at + 2])]
    ids = []
    for piece in pieces:
        ids += [TOKENS.index(piece)] if piece in SCORES else [3 + byte for byte in piece.encode()]
    return ids


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.sampled_from("abc é🌙"), max_size=14))
def test_pieces_are_joined_by_their_scores(write_gguf: WriteGGUF, text: str):
    tokenizer = sentencepiece(write_gguf, add_space_prefix=False, add_bos_token=False)
    ids = tokenizer.encode(text)
    assert ids == best_joins(text)
    assert tokenizer.decode(ids) == text


def test_a_space_goes_before_a_text_unless_the_file_says_no(write_gguf: WriteGGUF):
    tokenizer = sentencepiece(write_gguf)
    ids = tokenizer.encode("abc")
    assert ids == [1, TOKENS.index("▁"), TOKENS.index("abc")] == [1, *best_joins(" abc")]
    assert tokenizer.decode(ids) == "abc"
    assert tokenizer.add_bos
    assert sentencepiece(write_gguf, add_space_prefix=False).encode("abc") == [1, TOKENS.index("abc")]


def test_control_and_user_defined_tokens_are_taken_whole(write_gguf: WriteGGUF):
    tokenizer = sentencepiece(write_gguf, add_space_prefix=False, add_bos_token=False)
    ids = tokenizer.encode("a  x</s>")
    assert ids == [TOKENS.index("a"), len(TOKENS) - 1, 2]
    assert tokenizer.decode(ids) == "a  x"
    assert (tokenizer.special, tokenizer.eos_ids) == ({0, 1, 2}, {2})


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("a</s>b", ["▁a", "</s>", "▁", "b"]),
        ("</s>ab", ["</s>", "▁ab"]),
        ("<s></s>", ["<s>", "</s>"]),
        ("a<unk>c", ["▁a", "<unk>", "▁", "c"]),
        ("a  xb", ["▁a", "  x", "b"]),
        ("  xab", ["▁", "  x", "ab"]),
        ("  x</s>  xb", ["▁", "  x", "</s>", "▁", "  x", "b"]),
        ("", []),
    ],
)
def test_a_space_goes_after_control_tokens_but_not_after_user_defined_ones(
    write_gguf: WriteGGUF, text: str, pieces: list[str]
):
    """Control tokens as in llama.cpp, user-defined ones as in SentencePiece: the sentencepiece library gives
    the same for a model of that kind."""
    tokenizer = sentencepiece(write_gguf, add_bos_token=False)
    ids = tokenizer.encode(text)
    assert [tokenizer.tokens[i] for i in ids] == pieces
    stream = tokenizer.stream(show_special=True)
    assert "".join([*map(stream.push, ids), stream.end()]) == tokenizer.decode(ids, show_special=True)


def test_a_written_sentencepiece_tokenizer_is_read_the_same(write_gguf: WriteGGUF, tmp_path: Path):
    before = sentencepiece(write_gguf)
    write_tokenizer(before, tmp_path)
    after = read_tokenizer(tmp_path, len(before.tokens))
    assert after is not None
    for text in ("a  xb</s>ab c", "é🌙 </s>  x", " ", "<unk>a"):
        assert after.encode(text) == before.encode(text)
        assert after.decode(before.encode(text)) == before.decode(before.encode(text))


@pytest.mark.parametrize(("model", "field"), [("t5", "model"), ("bert", "model"), ("rwkv", "model")])
def test_a_vocabulary_that_is_not_read_stops_text_alone(write_gguf: WriteGGUF, model: str, field: str):
    checkpoint = open_gguf(write_gguf({"tokenizer.ggml.model": model}))
    with pytest.raises(InputError, match=f"{field}: '{model}': not read") as caught:
        _ = checkpoint.tokenizer
    assert checkpoint.tokenizer_error is caught.value
    assert checkpoint.eos_ids == {11}
    assert checkpoint.read("final_norm").shape == (1, 8)


def test_a_file_may_say_that_it_has_no_vocabulary(write_gguf: WriteGGUF):
    checkpoint = open_gguf(write_gguf({"tokenizer.ggml.model": "no_vocab"}))
    assert (checkpoint.tokenizer, checkpoint.tokenizer_error) == (None, None)


def test_ends_are_known_where_the_vocabulary_is_not_read(write_gguf: WriteGGUF):
    tokens = [*"abcd1234", "ab", "34", "<end_of_turn>", "<end>"]
    changes = {"model": "t5", "tokens": tokens, "token_type": [1] * 10 + [3, 3]}
    checkpoint = open_gguf(write_gguf({f"tokenizer.ggml.{key}": value for key, value in changes.items()}))
    assert checkpoint.tokenizer_error is not None
    assert checkpoint.eos_ids == {10, 11}


def test_a_token_too_long_to_be_one_is_refused(write_gguf: WriteGGUF):
    with pytest.raises(InputError, match="one has 2000 characters; at most 1024 are read"):
        sentencepiece(write_gguf, tokens=[*TOKENS[:-1], "x" * 2000])


@pytest.mark.parametrize("scores", [None, [1.0], ["a"], [math.nan] * len(TOKENS)])
def test_scores_that_do_not_fit_are_refused(write_gguf: WriteGGUF, scores: Any):
    with pytest.raises(InputError) as caught:
        sentencepiece(write_gguf, scores=scores)
    assert caught.value.field == "tokenizer.ggml.scores"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "text", "pieces"),
    [
        ("gpt-2", "it's  1234.5 now", ["it", "'s", "Ġ", "Ġ1234", ".", "5", "Ġnow"]),
        ("qwen2", "it's  1234.5\n\nnow", ["it", "'s", "Ġ", "Ġ", "1", "2", "3", "4", ".", "5", "ĊĊ", "now"]),
        ("llama-bpe", "it's  1234.5", ["it", "'s", "Ġ", "Ġ", "123", "4", ".", "5"]),
        ("falcon", "it's  1234.5 12", ["it", "'", "s", "Ġ", "Ġ", "123", "4", ".", "5", "Ġ", "12"]),
        ("smollm", "1234", ["1", "2", "3", "4"]),
        ("olmo", "1234 a", ["1234", "Ġa"]),
    ],
)
def test_text_is_split_as_each_kind_has_it(write_gguf: WriteGGUF, kind: str, text: str, pieces: list[str]):
    tokenizer = write(write_gguf, 12, model="gpt2", pre=kind, tokens=["a", "b", "ab"], merges=["a b"])
    splitter = tokenizer.backend.pre_tokenizer
    assert splitter is not None
    assert [piece for piece, _ in splitter.pre_tokenize_str(text)] == pieces


@pytest.mark.parametrize(("kind", "composed"), [("qwen2", True), ("olmo", True), ("gpt-2", False)])
def test_letters_and_accents_are_composed_where_the_kind_has_it(
    write_gguf: WriteGGUF, kind: str, composed: bool
):
    tokenizer = write(
        write_gguf, 12, model="gpt2", pre=kind, tokens=["Ã", "©", "a", "b", "ab"], merges=["a b"]
    )
    assert (tokenizer.encode("e\N{COMBINING ACUTE ACCENT}") == [0, 1]) == composed
