"""A tokenizer from and to the files of a folder in Hugging Face form.

`tokenizer.json` splits text, `tokenizer_config.json` names the special tokens and may hold chat templates (or
`chat_template.jinja` and `additional_chat_templates/*.jinja` do), `generation_config.json` or `config.json`
says which tokens end a text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import processors

from partita.checkpoints.chat_template import TOOL_USE, ChatTemplate
from partita.checkpoints.end_tokens import find_ends
from partita.checkpoints.tokenizer import Tokenizer, Tokens
from partita.checkpoints.tokenizer_json import added_tokens, beyond, check_settings, read_settings
from partita.checkpoints.tokenizer_library import Failure, attempt_quietly
from partita.errors import InputError
from partita.specs.hugging_face.config import load

_TOKENIZER, _SETTINGS, _TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
_MORE_TEMPLATES = "additional_chat_templates"
_GENERATION, _CONFIG, _SPECIAL = "generation_config.json", "config.json", "special_tokens_map.json"
_PREFIX = "partita_text_prefix"  # in settings that are written here
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_tokenizer(folder: Path, vocabulary: int) -> Tokenizer | None:
    """The tokenizer of a folder for a model with this size of vocabulary; None without a tokenizer.json.

    Raises InputError for files that cannot be read or do not fit together, and for a kind that is not read.
    """
    path = folder / _TOKENIZER
    if not path.is_file():
        return None
    settings = {**_optional(folder / _SPECIAL), **_optional(folder / _SETTINGS)}
    named = {name: text for name in _NAMED if (text := _content(settings.get(name))) is not None}
    template = _template(folder, settings, named)
    if template is not None:
        template.prepare()
    form, asked = read_settings(path)
    known = check_settings(asked, vocabulary, path)
    try:
        backend = attempt_quietly(partial(Backend.from_str, form))
    except Failure as failure:
        raise InputError("model", str(path), f"is not a tokenizer that can be read: {failure}") from None
    backend.no_truncation()  # some files keep how their model was trained
    backend.no_padding()
    if getattr(backend.model, "dropout", None):  # of training: ids would differ from one call to the next
        backend.model.dropout = None
    _check_ids(backend, asked, vocabulary, path)
    bos = _id(backend, named.get("bos_token"))
    bos = None if bos is None or bos >= vocabulary else bos
    added = backend.get_added_tokens_decoder()
    return Tokenizer(
        backend=backend,
        tokens=Tokens(backend, vocabulary),
        special=frozenset(i for i, token in added.items() if token.special and i < vocabulary),
        bos_id=bos,
        named_ends=named_ends(folder, _id(backend, named.get("eos_token"))),
        add_bos=_adds_bos(backend, bos, path),
        chat_template=template,
        prefix=_prefix(settings),
        watched=not known,
    )


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the files that `read_tokenizer` reads the same tokenizer from. Raises OSError."""
    backend = Backend.from_str(tokenizer.backend.to_str())
    bos = None if tokenizer.bos_id is None else tokenizer.tokens[tokenizer.bos_id]
    if tokenizer.add_bos and bos is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, tokenizer.bos_id)]
        )
    # not by its own `save`, whose errors do not say what is wrong with the file
    (folder / _TOKENIZER).write_text(backend.to_str(pretty=True), encoding="utf-8")
    settings: dict[str, object] = {_PREFIX: tokenizer.prefix} if tokenizer.prefix else {}
    if tokenizer.chat_template is not None:
        settings |= tokenizer.chat_template.special_tokens
        settings["chat_template"] = _as_setting(tokenizer.chat_template)
    if bos is not None:
        settings["bos_token"] = bos
    (folder / _SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    write_end_tokens(tokenizer.eos_ids, folder, tokenizer.bos_id)


def write_end_tokens(ends: Set[int], folder: Path, bos: int | None = None) -> None:
    """Writes the tokens that end a text, and the one that begins it, where `named_ends` finds them."""
    generation = {"bos_token_id": bos, "eos_token_id": sorted(ends)}
    (folder / _GENERATION).write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")


def _optional(path: Path) -> Mapping[str, object]:
    return load(path) if path.is_file() else {}


def _content(token: object) -> str | None:
    """A special token's text, which files give bare or as an object."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None


def _id(backend: Backend, token: str | None) -> int | None:
    return None if token is None else backend.token_to_id(token)


def _check_ids(backend: Backend, asked: Mapping[str, Any], vocabulary: int, path: Path) -> None:
    """Added tokens may be a few more than the model has (some are for other models of its family); the rest
    must be the model's, and each where the file says."""
    added = added_tokens(asked, path)
    most = max(backend.get_vocab(with_added_tokens=False).values(), default=0)
    if most >= vocabulary + len(added):
        raise beyond(most, vocabulary, path)
    for text, number in added.items():
        if (found := backend.token_to_id(text)) != number:
            message = f"its id is {number} in the file and {found} to the library (in {path})"
            raise InputError("added_tokens", text[:40], message)


def _prefix(settings: Mapping[str, object]) -> str:
    prefix = settings.get(_PREFIX, "")
    if prefix not in ("", " "):
        raise InputError(_PREFIX, repr(prefix)[:40], "nothing or a space is accepted")
    return str(prefix)


def end_tokens(folder: Path) -> dict[int, list[str]]:
    """The tokens that end a text, each with the reasons why, by what the files name and by the text of
    control tokens, where there is no tokenizer or none that is read."""
    try:
        added = _optional(folder / _TOKENIZER).get("added_tokens")
    except InputError:
        added = None
    control = {
        token["content"]: token["id"]
        for token in (added if isinstance(added, list) else ())
        if isinstance(token, Mapping) and token.get("special") is True
        if isinstance(token.get("content"), str) and type(token.get("id")) is int and token["id"] >= 0
    }
    return find_ends(named_ends(folder), control, control, None)


def named_ends(folder: Path, named: int | None = None) -> dict[int, str]:
    """The tokens that end a text, each with the file that says so: those of the first of the files in which
    transformers looks for them, and the one that a tokenizer has `named`.

    Raises InputError (field "eos_token_id") for what is no token id.
    """
    ends = {} if named is None else {named: f"{_SETTINGS}, eos_token"}
    config = _optional(folder / _CONFIG)
    inner = config.get("text_config")
    for file, place in (
        (_GENERATION, _optional(folder / _GENERATION)),
        (_CONFIG, config),
        (_CONFIG, inner if isinstance(inner, Mapping) else {}),
    ):
        found = place.get("eos_token_id")
        if found is not None:
            given = found if isinstance(found, list) else [found]
            ids = [i for i in given if type(i) is int and i >= 0]
            if len(ids) < len(given):
                raise InputError("eos_token_id", repr(found)[:60], "must be a token id or a list of them")
            return ends | dict.fromkeys(ids, f"{file}, eos_token_id")
    return ends


def _adds_bos(backend: Backend, bos: int | None, path: Path) -> bool:
    """Whether a text is begun with the bos token, seen by trying one."""
    try:
        plain, whole = attempt_quietly(
            lambda: [backend.encode("a", add_special_tokens=add).ids for add in (False, True)]
        )
    except Failure as failure:
        message = f"is not a tokenizer that can be read: it fails at a letter: {failure}"
        raise InputError("model", str(path), message) from None
    if whole == plain:
        return False
    if bos is not None and whole == [bos, *plain]:
        return True
    if bos is None and len(whole) == len(plain) + 1 and whole[1:] == plain:
        message = f"is not named, but {path.name} puts token {whole[0]} at the start of a text"
        raise InputError("bos_token", None, f"{message}; name it in {_SETTINGS} (in {path.parent})")
    message = "adds special tokens other than a bos token at the start of a text, which is not run here"
    raise InputError("post_processor", None, f"{message} (in {path})")


def _template(
    folder: Path, settings: Mapping[str, object], special_tokens: Mapping[str, str]
) -> ChatTemplate | None:
    """The folder's templates: those in files of their own, else those of the settings."""
    paths = {"default": folder / _TEMPLATE, TOOL_USE: folder / _MORE_TEMPLATES / f"{TOOL_USE}.jinja"}
    sources: dict[str, object] = {}
    for name, path in paths.items():
        if path.is_file():
            try:
                sources[name] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:  # stops chats alone
                return ChatTemplate("", special_tokens, problem=f"{path} is not a text file in UTF-8")
    if not sources:
        given = settings.get("chat_template")
        entries = given if isinstance(given, list) else [{"name": "default", "template": given}]
        sources = {str(e.get("name")): e.get("template") for e in entries if isinstance(e, Mapping)}
    texts = {name: source for name, source in sources.items() if isinstance(source, str)}
    if not texts.keys() & {"default", TOOL_USE}:
        return None
    tools = {TOOL_USE: texts[TOOL_USE]} if TOOL_USE in texts else {}
    return ChatTemplate(texts.get("default", texts.get(TOOL_USE, "")), special_tokens, tools)


def _as_setting(template: ChatTemplate) -> object:
    """A template, or several, as `chat_template` of the settings; nothing of one that cannot be used."""
    if template.problem is not None:
        return None
    if not template.named:
        return template.source
    every = {"default": template.source, **template.named}
    return [{"name": name, "template": source} for name, source in every.items()]
