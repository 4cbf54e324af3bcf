"""What the matrix of tests is made of: tiny models, layouts, and a small set that covers every pair.

Knows nothing about how a case is run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from partita.sharding import FFN_NAMES, Mesh, Roles, Storage, parse_layout, plan_storage
from partita.specs.model import Model

MESHES = [(8, 1, 1), (2, 2, 2), (1, 2, 4)]
HEADS = {"MHA": (6, 6), "GQA": (6, 3), "MQA": (6, 1)}
"""Query heads and key/value heads; none of these counts divides over 8 chips."""

ROLES = [
    "x=e,y=e,z=f",
    "x=e,y=e,z=e",
    "x=f,y=f-gathered,z=e",
    "x=e,y=f-gathered,z=f",
    "x=replica,y=e,z=f",
    "x=f,y=replica,z=e-gathered",
]
"""Combinations that the paper never names."""

FFNS = [*FFN_NAMES, *ROLES]
ATTENTIONS = ["heads", "batch", "x=heads,y=batch,z=batch"]
ATTENTION = {
    **{name: name for name in ATTENTIONS},
    "context": "context",
    "some context": "x=context,y=heads,z=context",
    "other context": "x=batch,y=context,z=context",
    "none": "x=none,y=batch,z=none",
}
"""All that the covering set takes, the roles that no name stands for among them."""
LAYOUTS = [f"{ffn}/{attention}" for ffn in FFNS for attention in ATTENTIONS]

CHOICES: dict[str, list] = {
    "mesh": MESHES,
    "batch": [8, 3, 1],
    "heads": list(HEADS),
    "norm": ["rmsnorm", "layernorm", "bare"],
    "block": ["serial", "parallel"],
    "feed_forward": ["swiglu", "gelu"],
    "positions": ["rotary", "none"],
    "tied": [True, False],
    "layers": [2, 1],
}
"""What a case is, beside its layouts; a bare norm is RMSNorm without parameters."""

Pair = tuple[tuple[str, Any], tuple[str, Any]]
"""Two choices, each with its name, in the order of the names."""


@dataclass(frozen=True)
class Case:
    """One model on one mesh, and layouts of which every (prefill, decode) pair is run, or only `pairs`."""

    model: Model
    mesh: Mesh
    batch: int
    prefills: tuple[str, ...]
    decodes: tuple[str, ...]
    storage: Storage | None = None
    """Where the weights lie; None: where the engine puts them for the first pair."""
    longest: int = 11  # tokens of the longest prompt
    pairs: frozenset[tuple[str, str]] | None = None

    def decodes_after(self, prefill: str) -> list[str]:
        """The decode layouts that are run after a prefill layout."""
        return [d for d in self.decodes if self.pairs is None or (prefill, d) in self.pairs]

    def roles(self, layout: str) -> Roles:
        return parse_layout(layout, self.mesh.axes)

    @property
    def stored(self) -> Storage:
        first = self.roles(self.decodes[0]), self.roles(self.prefills[0])
        return self.storage or plan_storage(self.model, self.mesh, *first)


def tiny_model(
    heads: str = "GQA",
    norm: str = "rmsnorm",
    block: str = "serial",
    feed_forward: str = "swiglu",
    positions: str = "rotary",
    tied: bool = True,
    **sizes: int,
) -> Model:
    """A model whose sizes are awkward: of heads, d_ff and vocabulary none divides over 8 chips."""
    query_heads, kv_heads = HEADS[heads]
    shape = {"layers": 2, "d_model": 48, "d_ff": 42, "head_dim": 8, "vocabulary": 101} | sizes
    return Model.model_validate(
        {
            "name": f"{heads}-{norm}-{block}-{feed_forward}-{positions}",
            "heads": query_heads,
            "kv_heads": kv_heads,
            "norm": "rmsnorm" if norm == "bare" else norm,
            "norm_parameters": norm != "bare",
            "block": block,
            "feed_forward": feed_forward,
            "positions": positions,
            "tied_embedding": tied,
            **shape,
        }
    )


def common_storage(model: Model, mesh: Mesh, decode: str) -> Storage:
    """Weights stored as `decode` keeps them, but padded so that every other layout can use them too."""
    roles = parse_layout(decode, mesh.axes)
    anything = parse_layout("ws1d/heads", mesh.axes)  # splits F and heads over every axis
    return plan_storage(model, mesh, replace(roles, attends=anything.attends), anything)


def full_case(mesh: tuple[int, ...], block: str, heads: str) -> Case:
    """All layouts in both phases on one storage; the model's other choices change from case to case."""
    number = [list(shape) for shape in MESHES].index(list(mesh)) + list(HEADS).index(heads)
    norm = CHOICES["norm"][(number + list(HEADS).index(heads)) % 3]
    model = tiny_model(
        heads,
        norm,
        block,
        feed_forward=CHOICES["feed_forward"][number % 2],
        positions="none" if number == 3 else "rotary",
        tied=(number + (block == "serial")) % 2 == 0,
    )
    over = Mesh.of(mesh)
    return Case(model, over, 8, tuple(LAYOUTS), tuple(LAYOUTS), common_storage(model, over, "ws2d/heads"))


@cache
def covering_cases() -> tuple[Case, ...]:
    """Few cases in which every pair of choices of `all_pairs` occurs at least once."""
    return tuple(_case(*chosen) for chosen in covering_choices())


def _case(choices: Mapping[str, Any], chosen: Sequence[tuple[Part, Part]]) -> Case:
    model = tiny_model(**{name: value for name, value in choices.items() if name not in ("mesh", "batch")})
    pairs = [(_layout(*prefill), _layout(*decode)) for prefill, decode in chosen]
    prefills, decodes = (tuple(dict.fromkeys(phase)) for phase in zip(*pairs, strict=True))
    mesh = Mesh.of(choices["mesh"])
    stored = common_storage(model, mesh, decodes[0])
    return Case(model, mesh, choices["batch"], prefills, decodes, stored, pairs=frozenset(pairs))


def _layout(ffn: str, attention: str) -> str:
    return f"{ffn}/{ATTENTION[attention]}"


LAYOUT_CHOICES: dict[str, list] = {
    "prefill ffn": FFNS,
    "prefill attention": list(ATTENTION),
    "decode ffn": FFNS,
    "decode attention": list(ATTENTION),
}
Part = tuple[str, str]
"""The names of one phase's feed-forward layout and of its attention's."""


def all_pairs(choices: Mapping[str, list]) -> set[Pair]:
    """Every two values of two different choices, but for feed-forward layouts that the paper never names:
    what one phase does with weights that the other stores so is the full run's (`full_case`)."""
    return {
        ((a, x), (b, y))
        for a, b in itertools.combinations(sorted(choices), 2)
        for x in choices[a]
        for y in choices[b]
        if (a, b) != ("decode ffn", "prefill ffn") or {x, y} <= set(FFN_NAMES)
    }


def pairs_of(row: Mapping[str, Any]) -> set[Pair]:
    """The pairs that one row, a value for each of some choices, holds."""
    return set(itertools.combinations(sorted(row.items()), 2))


def whole_row(row: Mapping[str, Any], prefill: Part, decode: Part) -> dict[str, Any]:
    """A row of `CHOICES` with the choices of both phases."""
    phases = zip(LAYOUT_CHOICES, (*prefill, *decode), strict=True)
    return {**row, **dict(phases)}


@cache
def covering_choices() -> list[tuple[dict[str, Any], list[tuple[Part, Part]]]]:
    """Rows of `CHOICES`, each with a few pairs of a prefill and a decode, found greedily."""
    rows, missing = _rows_with_layouts(), all_pairs({**CHOICES, **LAYOUT_CHOICES})
    held = {
        (i, pair): pairs_of(whole_row(row, *pair))
        for i, (row, prefills, decodes) in enumerate(rows)
        for pair in itertools.product(prefills, decodes)
    }
    chosen: list[list[tuple[Part, Part]]] = [[] for _ in rows]
    while missing:
        best = max(held, key=lambda each: len(held[each] & missing))
        missing -= held.pop(best)
        chosen[best[0]].append(best[1])
    return [(row, pairs) for (row, *_), pairs in zip(rows, chosen, strict=True)]


def _rows_with_layouts() -> list[tuple[dict[str, Any], list[tuple], list[tuple]]]:
    """Rows of `CHOICES`, each with a few (ffn, attention) of prefill and of decode, whose products hold every
    pair of choices."""
    rows: list[tuple[dict[str, Any], list[tuple], list[tuple]]] = [
        (row, [], []) for row in _pairwise(CHOICES)
    ]
    missing = all_pairs({**CHOICES, **LAYOUT_CHOICES}).difference(*(pairs_of(row) for row, _, _ in rows))
    layouts = list(itertools.product(FFNS, ATTENTION))
    while missing:
        for row, *phases in rows:
            for this, other in ((0, 1), (1, 0)):
                # one more layout for this phase: the one that, beside what is there already, covers most
                gains = {
                    layout: _gain(missing, row, this, layout, phases[other])
                    for layout in layouts
                    if layout not in phases[this]
                }
                best = max(gains, key=lambda layout: len(gains[layout]))
                if gains[best]:
                    phases[this].append(best)
                    missing -= gains[best]
    return rows


def _gain(missing: set[Pair], row: dict, this: int, layout: tuple, others: Sequence[tuple]) -> set[Pair]:
    found: set[Pair] = set()
    for other in others or [None]:
        choices = dict(row)
        for phase, chosen in ((this, layout), (1 - this, other)):
            if chosen:
                name = ("prefill", "decode")[phase]
                choices |= {f"{name} ffn": chosen[0], f"{name} attention": chosen[1]}
        found |= pairs_of(choices) & missing
    return found


def _pairwise(choices: Mapping[str, list]) -> Iterator[dict[str, Any]]:
    """Rows that together hold every pair of values, each row the one that adds most."""
    missing = all_pairs(choices)
    rows = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    held = [pairs_of(row) for row in rows]
    while missing:
        best = max(range(len(rows)), key=lambda i: len(held[i] & missing))
        missing -= held[best]
        yield rows[best]
