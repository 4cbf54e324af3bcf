"""Choices of how the program is run that change no result: each can be switched off, and its worth measured.

Pope et al. 2022, sections 3.4 to 3.6. Both interpreters are told the same. Which choice is fastest depends on
the machine; nothing here knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from partita.errors import InputError

Way = Literal["none", "one-way", "two-way"]
WAYS: tuple[Way, ...] = get_args(Way)
KINDS = ("gather", "scatter")
_ACCEPTED = (
    f"{', '.join(WAYS)}, or NAME=WAY pairs such as ffn/out/scatter=two-way,gather=one-way: NAME is an "
    "operation, or gather or scatter for all of that kind"
)


@dataclass(frozen=True)
class RunOptions:
    """What is on."""

    overlap: tuple[tuple[str, Way], ...] = ()
    """Which collectives are taken apart and looped with the einsums next to them, and which way round the
    ring: by the name of an operation ("ffn/out/scatter"), by kind ("gather", "scatter"), or "all"; the most
    special name counts, and what has none is not looped."""
    shared_reduction: bool = True
    """The two halves of a parallel block are reduced over chips once, not apart."""
    scatter_hidden: bool = True
    """Partial sums of the hidden units are scattered into them, not summed on every chip."""
    base2_softmax: bool = False
    """Exponentials of attention's shares are powers of 2."""
    blocks: bool = False
    """Shards of an inner dim travel as whole blocks and are put in place by a copy: what suits XLA's CPU
    backend, and is set where devices are CPUs."""

    def way(self, name: str, kind: str) -> Way:
        """How the gather before, or the scatter after, the einsum `name` is looped."""
        ways = dict(self.overlap)
        for key in (f"{name}/{kind}", kind, "all"):
            if key in ways:
                return ways[key]
        return "none"


def overlap_of(asked: str | Mapping[str, Way]) -> tuple[tuple[str, Way], ...]:
    """`RunOptions.overlap` of "none", "one-way", "two-way", NAME=WAY pairs in a text, or a mapping.

    Raises InputError (field "overlap").
    """
    if isinstance(asked, str):
        pairs = [part.split("=") for part in asked.split(",")] if "=" in asked else [["all", asked]]
        if any(len(pair) != 2 for pair in pairs):
            raise InputError("overlap", asked, f"accepted are {_ACCEPTED}")
        named = [(name.strip(), way.strip()) for name, way in pairs]
    else:
        named = list(asked.items())
    found: list[tuple[str, Way]] = []
    for name, given in named:
        known = name in (*KINDS, "all") or name.split("/")[-1] in KINDS
        if given not in WAYS or not known:
            raise InputError("overlap", asked, f"accepted are {_ACCEPTED}")
        found.append((name, WAYS[WAYS.index(given)]))
    return tuple(found)
