"""Wording of errors about input: near misses, and validation failures as one line."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import ValidationError


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A question that ends in a space, such as "did you mean tpu-v4? ", or "" where nothing is near."""
    near = get_close_matches(word.lower(), list(choices), n=1, cutoff=0.6)
    return f"did you mean {near[0]}? " if near else ""


def describe(error: ValidationError) -> str:
    """All failures of a validation on one line: `fabric[0].sise is not a known field; chip is missing`."""
    return "; ".join(_describe_one(dict(item)) for item in error.errors(include_url=False))


def _describe_one(item: dict) -> str:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"]).lstrip(".")
    if item["type"] == "missing":
        return f"{where} is missing"
    if item["type"] == "extra_forbidden":
        return f"{where} is not a known field"
    message = item["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if isinstance(item["input"], dict | list | tuple):
        return f"{where}: {message}" if where else message
    return f"{where} = {reprlib.repr(item['input'])}: {message}"
