"""What a `tokenizer.json` asks for, checked before the library makes a tokenizer of it.

The library trusts the file: it renumbers tokens whose ids it does not like, and a chain of replacements may
make a gigabyte of a letter. Everything but the vocabulary is small, stands before it, and is read here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from partita.checkpoints.gguf_splitting import known_patterns
from partita.errors import InputError, one_line

_MOST_BYTES = 256 << 20
"""Of a file; the largest that are published, of 256,000 tokens, have 35 MB."""
_MOST_GROWTH = 256
_SPACE = re.compile(r"[ \t\r\n]*")
_STEPS = ("normalizer", "pre_tokenizer", "decoder")


def read_settings(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a tokenizer.json, and what it holds but for its `model`.

    Raises InputError (field "model", value the path) for a file that is too large or no JSON object in UTF-8.
    """

    def wrong(problem: str) -> InputError:
        return InputError("model", str(path), f"is not a tokenizer that can be read: {problem}")

    if (size := path.stat().st_size) > _MOST_BYTES:
        raise wrong(f"it has {size:,} bytes; at most {_MOST_BYTES:,} are read")
    try:
        text = path.read_text(encoding="utf-8")
        return text, _but_model(text)
    except UnicodeDecodeError:
        raise wrong("it is not a text in UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise wrong(one_line(error)[:200]) from None


def _but_model(text: str) -> dict[str, Any]:
    """The fields of a JSON object up to `model`, which is not read where the others that count stand before
    it."""
    decoder = json.JSONDecoder()
    found: dict[str, Any] = {}
    place = _skip(text, 0)
    if text[place : place + 1] != "{":
        raise ValueError("it is no JSON object")
    place = _skip(text, place + 1)
    while text[place : place + 1] == '"':
        key, place = decoder.raw_decode(text, place)
        place = _skip(text, place)
        if text[place : place + 1] != ":":
            break
        if key == "model" and {*_STEPS, "added_tokens"} <= found.keys():
            return found
        found[key], place = decoder.raw_decode(text, _skip(text, place + 1))
        place = _skip(text, place)
        if text[place : place + 1] == ",":
            place = _skip(text, place + 1)
    return {key: value for key, value in json.loads(text).items() if key != "model"}


def _skip(text: str, place: int) -> int:
    space = _SPACE.match(text, place)
    return place if space is None else space.end()


def check_settings(settings: Mapping[str, Any], vocabulary: int, path: Path) -> bool:
    """Raises InputError for what the library would not do as it is written; whether every pattern is one of a
    published tokenizer, so that texts can be split without a watch."""
    added = added_tokens(settings, path)
    if (number := max(added.values(), default=0)) >= vocabulary + len(added):
        raise beyond(number, vocabulary, path)
    for part in _STEPS:
        growth = 1.0
        for step in steps(settings.get(part)):
            growth *= _growth(step, part, path)
            if growth > _MOST_GROWTH:
                message = f"make a text more than {_MOST_GROWTH} times as long, which is not run here"
                raise InputError(part, "its replacements", f"{message} (in {path})")
    patterns = [p for part in _STEPS for step in steps(settings.get(part)) if (p := pattern_of(step))]
    return all(pattern in known_patterns() for pattern in patterns)


def added_tokens(settings: Mapping[str, Any], path: Path) -> dict[str, int]:
    """The ids of the tokens that the file adds to its vocabulary, by their text."""
    added = settings.get("added_tokens") or []
    listed = added if isinstance(added, list) else [None]
    pairs = [(t.get("content"), t.get("id")) if isinstance(t, Mapping) else (None, None) for t in listed]
    found = {text: number for text, number in pairs if isinstance(text, str) and type(number) is int}
    if not all(isinstance(text, str) and type(number) is int for text, number in pairs):
        message = f"must be a list of tokens, each with a content and an id (in {path})"
        raise InputError("added_tokens", repr(added)[:40], message)
    return found


def beyond(number: int, vocabulary: int, path: Path) -> InputError:
    """The error for a token that is far from any that the model has."""
    message = f"its id is beyond the model's vocabulary, of {vocabulary} (in {path})"
    return InputError("token", number, message)


def steps(part: object) -> Iterator[Mapping[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder, one after another."""
    if isinstance(part, Mapping):
        inner = next((part[key] for key in ("normalizers", "pretokenizers", "decoders") if key in part), None)
        if inner is None:
            yield part
        elif isinstance(inner, list):
            for one in inner:
                yield from steps(one)


def pattern_of(step: Mapping[str, Any]) -> str | None:
    """The regular expression of a step that has one."""
    pattern = step.get("pattern")
    found = pattern.get("Regex") if isinstance(pattern, Mapping) else None
    return found if isinstance(found, str) else None


def _growth(step: Mapping[str, Any], part: str, path: Path) -> float:
    """How many times as long a step makes a text at most."""
    if step.get("type") == "Prepend":
        return 1 + len(str(step.get("prepend", "")))
    if step.get("type") == "Strip" and part == "decoder" and step.get("stop"):
        message = f"fails on texts that are empty; only spaces at the start can be stripped (in {path})"
        raise InputError("decoder", "Strip", message)
    if step.get("type") == "FixedLength" and step.get("length") in (0, None):
        raise InputError(part, "FixedLength", f"must have a length of 1 or more (in {path})")
    if step.get("type") != "Replace":
        return 1
    pattern, length = step.get("pattern"), len(str(step.get("content", "")))
    text = pattern.get("String") if isinstance(pattern, Mapping) else None
    if text == "":
        raise InputError(part, "Replace", f"must have a pattern of 1 or more characters (in {path})")
    return max(1.0, length / len(text)) if isinstance(text, str) else 1 + length
