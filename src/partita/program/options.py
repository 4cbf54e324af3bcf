"""Choices of how the program is run that change no result, and what a compiler's backend makes of it.

Each choice can be switched off, and its worth measured (Pope et al. 2022, sections 3.4 to 3.6). Both
interpreters are told the same, and find the collectives that a loop can take apart in the same way:
structurally, as `sharding.reshard` does, by names and never by sizes. Which choice is fastest depends on the
machine; nothing here knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from partita.errors import InputError
from partita.sharding.interleave import INTERLEAVED
from partita.sharding.reshard import ReshardStep, reshard
from partita.sharding.spec import Sharding, parse

Way = Literal["none", "one-way", "two-way"]
WAYS: tuple[Way, ...] = get_args(Way)
KINDS = ("gather", "scatter")
_ACCEPTED = (
    f"{', '.join(WAYS)}, or NAME=WAY pairs such as ffn/out/scatter=two-way,gather=one-way: NAME is an "
    "operation, or gather or scatter for all of that kind"
)


@dataclass(frozen=True)
class Backend:
    """What a compiler's backend keeps and copies; by default no more than the program asks for."""

    in_blocks: bool = False
    """Shards of an inner dim travel as whole blocks and are put in place by a copy."""
    residuals: int = 1
    """How many copies of the residual are held all through a step."""
    keeps_gated: bool = False
    """What the feed-forward's gate gives is held beside what it was made from until the product with it."""
    results_apart: bool = False
    """A result has room of its own from the beginning of a step."""
    gaps: int | None = None
    """For every so many bytes that are held at once one is lost between buffers, as measured; None: none."""

    widens: bool = False
    """bfloat16 is computed in float32: activations are held so, and a layer's keys and values once more."""
    program_bytes: int = 0
    """What compiled programs take of the host's memory, as measured, and the compiler while it makes them."""
    layer_program_bytes: int = 0
    """The same for each layer of the model."""

    def with_gaps(self, held: Any) -> Any:
        """Bytes that are held at once, and what is lost between them."""
        return held if self.gaps is None else held + held // self.gaps


XLA_CPU = Backend(
    in_blocks=True,
    residuals=2,
    keeps_gated=True,
    results_apart=True,
    gaps=16,
    widens=True,
    program_bytes=110_000_000,
    layer_program_bytes=3_000_000,
)
"""What XLA keeps and copies where devices are threads of one processor (jaxlib 0.10.2)."""


@dataclass(frozen=True)
class RunOptions:
    """Which of the choices are made."""

    overlap: tuple[tuple[str, Way], ...] = ()
    """Which collectives are taken apart and looped with the einsums next to them, and which way round the
    ring: by the name of an operation ("ffn/out/scatter"), by kind ("gather", "scatter"), or "all"; the most
    specific name counts, and what has none is not looped."""
    shared_reduction: bool = True
    """The two halves of a parallel block are reduced over chips once, not apart."""
    scatter_hidden: bool = True
    """Partial sums of the hidden units are scattered into them, not summed on every chip."""
    base2_softmax: bool = False
    """Exponentials of attention's shares are powers of 2."""
    backend: Backend = Backend()
    """What compiles the program; the engine sets it by its devices."""

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


_AROUND = ("layer", "global", "local")
"""Scopes that are no part of an operation's name: an option holds in all layers alike."""


def name_of(scopes: Sequence[str]) -> str:
    """The name that options have for an operation inside these scopes, e.g. "ffn/out"."""
    return "/".join(scope for scope in scopes if scope not in _AROUND)


def gather_step(source: Sharding, gathered: str, texts: Sequence[str]) -> ReshardStep | None:
    """The all-gather that ends the way of the first operand of these einsums to `gathered`, if one does and
    they all sum over what it gathers."""
    steps = reshard(source, parse(gathered))
    if not texts or not steps or steps[-1].kind != "all-gather":
        return None
    dim = steps[-1].dim
    return None if dim == INTERLEAVED or any(dim in text.split("->")[1] for text in texts) else steps[-1]


def scatter_step(product: Sharding, to: str) -> ReshardStep | None:
    """The reduce-scatter that an einsum's product starts its way to `to` with, if it does with one."""
    steps = reshard(product, parse(to))
    if not steps or steps[0].kind != "reduce-scatter" or steps[0].dim == INTERLEAVED:
        return None
    return steps[0]
