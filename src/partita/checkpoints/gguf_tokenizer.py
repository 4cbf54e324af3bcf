"""The tokenizer that a GGUF file carries in its `tokenizer.*` keys, built with the `tokenizers` library.

It is of one of two kinds. A byte-level vocabulary ("gpt2") names its way of splitting text; ways not listed
here are refused by name, since splitting text the wrong way gives plausible, wrong ids. A SentencePiece
vocabulary ("llama") has a score for each piece and no merges: SentencePiece joins the two neighbours that
make the piece of the highest score (Kudo & Richardson 2018, arXiv 1808.06226), so every way to make a piece
of two others is a merge, in the order of the scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from partita.checkpoints.chat_template import TOOL_USE, ChatTemplate
from partita.checkpoints.gguf_file import Metadata
from partita.checkpoints.tokenizer import Spelling, Tokenizer
from partita.errors import InputError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # values of tokenizer.ggml.token_type

_TEMPLATE = "tokenizer.chat_template"

_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 and Qwen split text, but for how many digits stay together."""


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _by_pieces(digits: str) -> pre_tokenizers.PreTokenizer:
    pieces = pre_tokenizers.Split(Regex(_PIECES.replace("DIGITS", digits)), behavior="isolated")
    return pre_tokenizers.Sequence(
        [pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def _falcon() -> pre_tokenizers.PreTokenizer:
    threes = pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated")
    steps = [pre_tokenizers.Punctuation("contiguous"), _gpt2(), pre_tokenizers.Digits(), threes]
    return pre_tokenizers.Sequence(steps)


@dataclass(frozen=True)
class _Kind:
    """One way of splitting text (`tokenizer.ggml.pre`)."""

    pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer]
    whole_tokens_first: bool = False  # a piece that is itself a token is taken whole, whatever the merges
    add_bos: bool = False  # where the file does not say
    normalizer: Callable[[], normalizers.Normalizer] | None = None


_KINDS = {
    "gpt-2": _Kind(_gpt2),
    "smollm": _Kind(_smollm),
    "llama-bpe": _Kind(partial(_by_pieces, "{1,3}"), whole_tokens_first=True, add_bos=True),
    "qwen2": _Kind(partial(_by_pieces, ""), normalizer=normalizers.NFC),
    "falcon": _Kind(_falcon),
    "olmo": _Kind(_gpt2, normalizer=normalizers.NFC),  # that of GPT-NeoX too
}


def read_tokenizer(metadata: Metadata, vocabulary: int) -> Tokenizer | None:
    """The tokenizer of a GGUF file for a model with this size of vocabulary; None where the file has none.

    Raises InputError (field the key) for a kind that is not read, and for lists that do not fit together.
    """
    keys = metadata.under("tokenizer.ggml.")
    if "model" not in keys:
        return None
    model = keys.text("model")
    if model not in ("gpt2", "llama"):
        raise keys.wrong("model", "not read; gpt2 (byte-level BPE) and llama (SentencePiece) are")
    kind = None if model == "llama" else _KINDS.get(keys.text("pre"))
    if kind is None and model != "llama":
        raise keys.wrong("pre", f"not read; these are: {', '.join(_KINDS)}")

    tokens = keys.texts("tokens")
    if len(set(tokens)) < len(tokens) or not 1 <= len(tokens) <= vocabulary:
        message = f"holds {len(tokens)} tokens; must be different and at most {vocabulary}"
        raise keys.wrong("tokens", message)
    types = _token_types(keys, len(tokens))
    template = _chat_template(metadata, keys, tokens)
    if template is not None:
        template.prepare()
    if kind is None:
        prefix = keys.flag("add_space_prefix", True)
        backend = _sentencepiece(keys, tokens, types, prefix)
        spelling = Spelling.PIECES_AFTER_SPACE if prefix else Spelling.PIECES
    else:
        backend, spelling = _byte_level(keys, kind, tokens), Spelling.BYTES
    backend.add_tokens(
        [
            AddedToken(token, normalized=False, special=type == _CONTROL)
            for token, type in zip(tokens, types, strict=True)
            if type in (_CONTROL, _USER_DEFINED)
        ]
    )
    bos = _token_id(keys, "bos", len(tokens))
    named_ends = {
        token: f"tokenizer.ggml.{end}_token_id"
        for end in ("eom", "eot", "eos")  # of one that has several names the last is shown
        if (token := _token_id(keys, end, len(tokens))) is not None
    }
    return Tokenizer(
        backend=backend,
        tokens=[*tokens, *[""] * (vocabulary - len(tokens))],
        special=frozenset(token for token, type in enumerate(types) if type == _CONTROL),
        bos_id=bos,
        named_ends=named_ends,
        add_bos=keys.flag("add_bos_token", kind is None or kind.add_bos),
        chat_template=template,
        spelling=spelling,
    )


def _token_types(keys: Metadata, count: int) -> list[int]:
    if "token_type" not in keys:
        return [_NORMAL] * count
    types = keys.integers("token_type")
    if len(types) != count:
        raise keys.wrong("token_type", f"holds {len(types)} types; must be {count}")
    return types


def _token_id(keys: Metadata, name: str, count: int) -> int | None:
    key = f"{name}_token_id"
    if key not in keys:
        return None
    token = keys.integer(key)
    if token >= count:
        raise keys.wrong(key, f"must be from 0 to {count - 1}")
    return token


def _chat_template(metadata: Metadata, keys: Metadata, tokens: list[str]) -> ChatTemplate | None:
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {variable: _token_id(keys, key, len(tokens)) for variable, key in named.items()}
    special_tokens = {variable: tokens[i] for variable, i in ids.items() if i is not None}
    sources: dict[str, str] = {}
    for name, key in {"": _TEMPLATE, TOOL_USE: f"{_TEMPLATE}.{TOOL_USE}"}.items():
        if key in metadata:
            try:
                sources[name] = metadata.text(key)
            except InputError as error:  # which stops chats alone
                return ChatTemplate("", special_tokens, problem=error.message)
    if not sources:
        return None
    return ChatTemplate(sources.pop("", sources.get(TOOL_USE, "")), special_tokens, sources)


def _byte_level(keys: Metadata, kind: _Kind, tokens: list[str]) -> Backend:
    pairs = []
    for merge in keys.texts("merges"):
        left, _, right = merge.partition(" ")
        pairs.append((left, right))
    ids = {token: i for i, token in enumerate(tokens)}
    for left, right in pairs:
        if not (left in ids and right in ids and left + right in ids):
            raise InputError(
                "tokenizer.ggml.merges",
                f"{left + ' ' + right!r:.80}",
                f"each must be two tokens that make a third (in {keys.path})",
            )
    backend = Backend(models.BPE(vocab=ids, merges=pairs, ignore_merges=kind.whole_tokens_first))
    if kind.normalizer is not None:
        backend.normalizer = kind.normalizer()
    backend.pre_tokenizer = kind.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(keys: Metadata, tokens: list[str], types: list[int], prefix: bool) -> Backend:
    """What splits text into these pieces, and into bytes where they cannot spell it.

    prefix: whether a space is put before a text. Raises InputError where the scores do not fit the tokens.
    """
    unknown = next((token for token, type in zip(tokens, types, strict=True) if type == _UNKNOWN), None)
    model = models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=_merges(tokens, types, keys.numbers("scores", len(tokens))),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Backend(model)
    steps = [normalizers.Replace(" ", "▁")]
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *steps] if prefix else steps)
    join = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*join, decoders.Strip(" ", 1, 0)] if prefix else join)
    return backend


def _merges(tokens: list[str], types: list[int], scores: np.ndarray) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, those of the highest score first."""
    ids = {token: i for i, token in enumerate(tokens) if types[i] == _NORMAL}
    found = [
        (-scores[i], ids[token[:cut]], ids[token[cut:]])
        for token, i in ids.items()
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    return [(tokens[left], tokens[right]) for _, left, right in sorted(found)]
