"""The smallest change with which what is asked would fit, said in the words of whoever asks.

A change is offered only where the caller has a word for it: the command line has options, a Python caller
arguments, and neither has all of them. Knows nothing of how bytes are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from partita.planner.run_memory import largest
from partita.specs.formats import Formats

Words = Mapping[str, str]
"""How a caller says a change: of `dtype`, `weights`, `kv`, `chunk`, a field of the request, or `force`."""

PYTHON: Words = {
    "dtype": 'dtype="{}"',
    "weights": 'weights="{}"',
    "kv": 'kv="{}"',
    "chunk": "chunk={}",
    "n": "n={}",
    "max_tokens": "max_tokens={}",
    "batch": "prompts in batches of {}",
    "prompt": "prompts of up to {} tokens",
    "force": "force=True",
}
"""Arguments of `Engine.load` and fields of `Sampling`."""


class Request(Protocol):
    """What is asked of a model, and how it can be less."""

    @property
    def fields(self) -> Sequence[str]:
        """What can be less, each alone."""
        ...

    @property
    def read_at_once(self) -> int | None:
        """Tokens of the longest prompt that may be read in chunks; None where that cannot be chosen."""
        ...

    def most(self, field: str) -> int: ...

    def at_most(self, field: str, most: int) -> Any:
        """The same with at most so much of one field."""
        ...


Asks = TypeVar("Asks", bound=Request)
Fits = Callable[[Formats, Asks | None, int | None], bool]
"""Whether a request fits in some formats, so many tokens of a prompt read in one step."""


def smallest_change(
    asked: Asks | None, formats: Formats, chunk: int | None, words: Words, fits: Fits[Asks], placed: bool
) -> str | None:
    """The first of the changes, from the mildest, with which it fits; None where none does.

    placed: the weights are there already, so that formats and chunks are chosen for good.
    """
    cheaper: list[tuple[str, Formats]] = []
    if not placed:
        if asked is not None and asked.read_at_once is not None and "chunk" in words:
            width = min(chunk or asked.read_at_once, asked.read_at_once)
            while width > _SHORTEST:
                width = max(_SHORTEST, width // 2)
                if fits(formats, asked, width):
                    return words["chunk"].format(width)
        cheaper = list(_cheaper(formats, words))
        for said, other in cheaper:
            if fits(other, asked, chunk):
                return said
    for said, other in (("", formats), *cheaper[-1:]):
        if asked is not None and (found := list(_less(asked, other, chunk, words, fits))):
            return f"{said}{' and ' if said else ''}{' or '.join(found)}"
    return None


_SHORTEST = 16
"""Tokens of the shortest chunk that is offered."""


def _less(asked: Asks, formats: Formats, chunk: int | None, words: Words, fits: Fits[Asks]) -> Iterator[str]:
    """The most of each field that fits, changed alone."""
    for field in asked.fields:
        most = asked.most(field)
        if field not in words or most <= 1:
            continue

        def enough(number: int, field: str = field, most: int = most) -> bool:
            return number < most and fits(formats, asked.at_most(field, number), chunk)

        if less := largest(enough, {1}):
            yield words[field].format(less)


def _cheaper(formats: Formats, words: Words) -> Iterator[tuple[str, Formats]]:
    """Formats of fewer bits, from the mildest change."""
    if formats.activations == "f32" and "dtype" in words:
        fewer = {
            name: "bf16" if getattr(formats, name) == "f32" else getattr(formats, name)
            for name in ("weights", "kv")
        }
        yield words["dtype"].format("bf16"), formats.model_copy(update={**fewer, "activations": "bf16"})
    for names in (("kv",), ("weights",), ("weights", "kv")):
        if any(getattr(formats, name) != "int8" for name in names) and all(name in words for name in names):
            said = " and ".join(words[name].format("int8") for name in names)
            yield said, formats.model_copy(update=dict.fromkeys(names, "int8"))
