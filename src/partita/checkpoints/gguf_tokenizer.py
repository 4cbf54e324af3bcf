"""The tokenizer that a GGUF file carries in its `tokenizer.*` keys, built with the `tokenizers` library.

It is of one of two kinds. A byte-level vocabulary ("gpt2") names its way of splitting text, one of those in
`gguf_splitting`; others are refused by name, since splitting text the wrong way gives plausible, wrong ids. A
SentencePiece vocabulary ("llama") has a score for each piece and no merges: SentencePiece joins the two
neighbours that make the piece of the highest score (Kudo & Richardson 2018, arXiv 1808.06226), so every way
to make a piece of two others is a merge, in the order of the scores.

A SentencePiece text begins with a space unless the file says no, and begins anew after a control token, as
llama.cpp and the tokenizers of Llama 2 have it. A user-defined token is part of the text, as it is to
SentencePiece: none is put after it, though llama.cpp does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from partita.checkpoints.chat_template import TOOL_USE, ChatTemplate
from partita.checkpoints.end_tokens import find_ends
from partita.checkpoints.gguf_file import Metadata
from partita.checkpoints.gguf_splitting import SPLITTINGS, Splitting
from partita.checkpoints.tokenizer import Tokenizer
from partita.checkpoints.tokenizer_library import Failure, attempt
from partita.errors import InputError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # values of tokenizer.ggml.token_type
_HIDDEN = (_UNKNOWN, _CONTROL)
_NONE = ("none", "no_vocab")  # values of tokenizer.ggml.model in a file without a vocabulary
_MOST_CHARACTERS = 1024  # of a token; the longest that are published have some 200
_TEMPLATE = "tokenizer.chat_template"
_ENDS = ("eom", "eot", "eos")
"""Keys that name tokens which end a text; of a token that has several the last is shown."""


def read_tokenizer(metadata: Metadata, vocabulary: int) -> Tokenizer | None:
    """The tokenizer of a GGUF file for a model with this size of vocabulary; None where the file has none.

    Raises InputError (field the key) for a kind that is not read, and for lists that do not fit together.
    """
    keys = metadata.under("tokenizer.ggml.")
    if "model" not in keys:
        return None
    model = keys.text("model")
    if model in _NONE:
        return None
    if model not in ("gpt2", "llama"):
        raise keys.wrong("model", "not read; gpt2 (byte-level BPE) and llama (SentencePiece) are")
    kind = None if model == "llama" else SPLITTINGS.get(keys.text("pre"))
    if kind is None and model != "llama":
        raise keys.wrong("pre", f"not read; these are: {', '.join(SPLITTINGS)}")

    tokens = keys.texts("tokens")
    if len(set(tokens)) < len(tokens) or not 1 <= len(tokens) <= vocabulary:
        message = f"holds {len(tokens)} tokens; must be different and at most {vocabulary}"
        raise keys.wrong("tokens", message)
    types = _token_types(keys, len(tokens))
    template = _chat_template(metadata, keys, tokens)
    if template is not None:
        template.prepare()
    if kind is None:
        prefix = " " if keys.flag("add_space_prefix", True) else ""
        backend = _sentencepiece(keys, tokens, types, prefix)
    else:
        prefix, backend = "", _byte_level(keys, kind, tokens)
    backend.add_tokens(
        [
            AddedToken(token, normalized=False, special=type in _HIDDEN)
            for token, type in zip(tokens, types, strict=True)
            if type in (*_HIDDEN, _USER_DEFINED)
        ]
    )
    bos = _token_id(keys, "bos", len(tokens))
    named_ends = {
        token: f"tokenizer.ggml.{end}_token_id"
        for end in _ENDS
        if (token := _token_id(keys, end, len(tokens))) is not None
    }
    return Tokenizer(
        backend=backend,
        tokens=[*tokens, *[""] * (vocabulary - len(tokens))],
        special=frozenset(token for token, type in enumerate(types) if type in _HIDDEN),
        bos_id=bos,
        named_ends=named_ends,
        add_bos=keys.flag("add_bos_token", kind is None or kind.add_bos),
        chat_template=template,
        prefix=prefix,
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


def end_tokens(metadata: Metadata, count: int) -> dict[int, list[str]]:
    """The tokens that end a text, each with the reasons why, by key and by the text of control tokens, where
    the vocabulary is not one that is read. count: of tokens that the model has."""
    keys = metadata.under("tokenizer.ggml.")
    named = {f"tokenizer.ggml.{end}_token_id": keys.get(f"{end}_token_id") for end in _ENDS}
    ends = {end: key for key, end in named.items() if type(end) is int and 0 <= end < count}
    tokens, types = keys.get("tokens"), keys.get("token_type")
    control: dict[str, int] = {}
    if isinstance(tokens, list) and isinstance(types, list):
        pairs = zip(tokens[:count], types, strict=False)
        control = {t: i for i, (t, type) in enumerate(pairs) if type == _CONTROL and isinstance(t, str)}
    return find_ends(ends, control, control, None)


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


def _byte_level(keys: Metadata, kind: Splitting, tokens: list[str]) -> Backend:
    ids = {token: i for i, token in enumerate(tokens)}
    pairs: list[Any] = [tuple(merge.split(" ", 1)) for merge in keys.texts("merges")]
    try:
        model = attempt(lambda: models.BPE(vocab=ids, merges=pairs, ignore_merges=kind.whole_tokens_first))
    except Failure as failure:
        wrong = (
            " ".join(pair) for pair in pairs if not ids.keys() >= {*pair, "".join(pair)} or len(pair) < 2
        )
        message = f"each must be two tokens that make a third (in {keys.path})"
        raise InputError("tokenizer.ggml.merges", f"{next(wrong, str(failure))!r:.80}", message) from None
    backend = Backend(model)
    if (normalizer := kind.normalizer()) is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = kind.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(keys: Metadata, tokens: list[str], types: list[int], prefix: str) -> Backend:
    """What splits text into these pieces, and into bytes where they cannot spell it.

    prefix: what is put before a text, and taken away from the start of the text of ids. Raises InputError
    where the scores do not fit the tokens.
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
    backend.normalizer = normalizers.Replace(" ", "▁")
    join = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*join, decoders.Strip(" ", 1, 0)] if prefix else join)
    return backend


def _merges(tokens: list[str], types: list[int], scores: np.ndarray) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, those of the highest score first."""
    if (longest := max(map(len, tokens))) > _MOST_CHARACTERS:
        message = f"one has {longest} characters; at most {_MOST_CHARACTERS} are read"
        raise InputError("tokenizer.ggml.tokens", f"{max(tokens, key=len)[:20]!r}...", message)
    ids = {token: i for i, token in enumerate(tokens) if types[i] == _NORMAL}
    found = [
        (-scores[i], ids[token[:cut]], ids[token[cut:]])
        for token, i in ids.items()
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    return [(tokens[left], tokens[right]) for _, left, right in sorted(found)]
