"""Rows of the space as one layout: every role of every slot is a mesh axis, of size 1 where it is not played.

Since an axis of one chip costs nothing, one pass of the program over this layout prices all rows. Axes here
have names of their own, one letter of any alphabet, and sizes that are arrays [rows, batches]. Mirrors what
`sharding.layout.resolve` does for one mesh of known sizes; knows no prices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from partita.cost.links import Links
from partita.planner.heads import Part, cut_heads
from partita.planner.space import AxisRoles, Counts, Segment, Topology
from partita.sharding.layout import Layout, Storage
from partita.sharding.roles import Roles
from partita.specs.model import Model

_LETTERS = [chr(code) for code in range(ord("a"), 0x500) if chr(code).islower()]
_NO_ROLES = Roles("", "", (), ())


@dataclass(frozen=True)
class Axis:
    """An axis: the part of a slot's role that splits sequences, query tokens or nothing, and K or G heads."""

    name: str
    segment: int
    kind: AxisRoles
    tokens: str  # what it splits of the tokens: "b", "l" or "" for nothing
    heads: str  # which dim of the heads it splits where it splits heads: "k", "g", else ""
    sizes: np.ndarray  # [rows, batches], either of them 1 where it does not matter
    trades: bool = False  # attention splits sequences over it where the tokens around it are split otherwise

    @property
    def part(self) -> str:
        """What it splits, where its role leaves that open."""
        return self.tokens + self.heads + "t" * self.trades

    @property
    def attends(self) -> str:
        """What attention splits over it: "b", "l" (or "s", the cache, in decode), heads "k" or "g", or ""."""
        wanted = self.kind.attention
        if wanted == "heads":
            return self.heads
        if self.trades:
            return "b"
        if wanted == "none" or (wanted == "batch" and self.kind.splits_tokens and not self.tokens):
            return ""
        if wanted == "context" or self.tokens == "l":
            return "l"
        return "b"


@dataclass(frozen=True)
class AxisSet:
    """The axes of all rows, and which rows are layouts at which batch [rows, batches]."""

    letters: tuple[Axis, ...]
    legal: np.ndarray

    def sizes(self) -> dict[str, np.ndarray]:
        return {letter.name: letter.sizes for letter in self.letters}


def spread(
    model: Model,
    topology: Topology,
    kinds: Sequence[AxisRoles],
    counts: Counts,
    batch: np.ndarray,
    queries: int,
    context: int,
    *,
    enough: bool,
) -> AxisSet:
    """The axes of `counts` [rows, slots, kinds] for the batches [1, batches] of `queries` new tokens each.

    A row is no layout at a batch where a gathered axis has fewer sequences and query tokens than chips, or
    attention fewer sequences or positions; replicas without tokens to split stand idle. `enough`: only where
    there is a sequence for every chip that tokens are split over, so that no split hangs on the batch.
    """
    legal = np.ones((len(counts), batch.shape[1]), bool)
    room_b, room_l = batch * np.ones((len(counts), 1)), np.full_like(legal, queries, dtype=float)
    names, letters = iter(_LETTERS), []

    def add(part: Part, tokens: str, sizes: np.ndarray, trades: bool = False) -> None:
        if (sizes > 1).any():
            letters.append(Axis(next(names), part.segment, part.kind, tokens, part.heads, sizes, trades))

    others: list[tuple[Part, str, np.ndarray]] = []  # that attention may yet split sequences over
    for part in sorted(cut_heads(model, topology, kinds, counts), key=_fills):
        segment, size = topology.segments[part.segment], part.size[:, None]
        if not part.kind.splits_tokens:
            add(part, "", size)
            continue
        if enough:
            room_b = room_b / size
            legal &= room_b >= 1
            add(part, "b", size)
            continue
        by_b = _largest_divisor(segment, size, room_b)
        room_b, rest = room_b / by_b, size / by_b
        by_l = _largest_divisor(segment, rest, room_l)
        room_l, rest = room_l / by_l, rest / by_l
        if part.kind.stored:
            legal &= rest == 1
        add(part, "b", by_b)
        for tokens, left in (("l", by_l), ("", rest)):
            if part.kind.attention == "batch" and (left > 1).any():
                others.append((part, tokens, left))
            else:
                add(part, tokens, left)
    room_b = batch / _taken(letters, "b")
    for part, tokens, size in others:
        traded = _largest_divisor(topology.segments[part.segment], size, room_b)
        room_b = room_b / traded
        add(part, tokens, traded, trades=True)
        add(part, tokens, size / traded)
    letters.sort(key=_fills)
    for what, room in (("b", batch), ("l", context if queries == 1 else queries)):
        legal &= _taken(letters, what) <= room
    return AxisSet(tuple(letters), legal)


def _fills(part: Part | Axis) -> tuple:
    """Sorts by who takes sequences first: as in `resolve`, replicas, then what is stored on F, then on E."""
    stored, attention = part.kind.stored, part.kind.attention
    if not stored:  # of one slot their order is free: first whose sequences attention leaves where they are
        return 0, part.segment, attention != "batch"
    over_k = stored == "f" and part.heads == "k"
    return "fe".index(stored) + 1, over_k, attention in ("batch", "context"), part.segment


def _taken(letters: Sequence[Axis], attends: str) -> np.ndarray:
    """Into how many parts attention splits a dim, [rows, batches]."""
    taken = np.ones((1, 1))
    for letter in letters:
        if letter.attends == attends:
            taken = taken * letter.sizes
    return taken


def _largest_divisor(segment: Segment, size: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Of each size, its largest divisor that is at most `room` [rows, batches]."""
    found = np.ones(np.broadcast_shapes(size.shape, room.shape))
    # few rows give this role any chips
    playing = np.nonzero(np.broadcast_to(size > 1, found.shape).any(axis=1))[0]
    size, room = (np.broadcast_to(n, found.shape)[playing] for n in (size, room))
    most = np.ones_like(size)
    for divisor in segment.divisors[1:]:
        most = np.where((size % divisor == 0) & (divisor <= room), divisor, most)
    found[playing] = most
    return found


def links(topology: Topology, found: AxisSet) -> Links:
    """How many chips of each axis lie on each level."""
    parts = {}
    for letter in found.letters:
        segment = topology.segments[letter.segment]
        if segment.whole:
            whole = letter.sizes == segment.size
            parts[letter.name] = tuple(np.where(whole, part, 1) for part in segment.parts)
        else:
            parts[letter.name] = tuple(letter.sizes if part > 1 else 1 for part in segment.parts)
    return Links(topology.levels, parts)


def layout(found: AxisSet, decode: bool) -> Layout:
    """The layout of one phase over all axes, in the orders that `plan_storage` and `resolve` give them."""

    def those(letters: Sequence[Axis], chosen: Callable[[Axis], bool]) -> str:
        return "".join(letter.name for letter in letters if chosen(letter))

    def leaves(letter: Axis) -> int:
        return 4 * letter.kind.splits_tokens + 2 * (letter.kind.attention in ("batch", "context"))

    order = sorted(found.letters, key=leaves)
    storage = Storage(
        e=those(order, lambda a: a.kind.stored == "e"),
        f=those(order, lambda a: a.kind.stored == "f"),
        fg=those(order, lambda a: a.kind.stored == "f" and a.heads == "g"),
        fk=those(order, lambda a: a.kind.stored == "f" and a.heads == "k"),
        k_axes=those(order, lambda a: a.heads == "k"),
        g_axes=those(order, lambda a: a.heads == "g"),
        padded_axes=those(order, lambda a: bool(a.kind.stored)),
        s_axes=those(order, lambda a: a.attends == "l" and a.kind.attention == "context"),
    )
    rank = {name: place for place, name in enumerate(storage.fg + storage.fk + storage.e)}
    first = sorted(found.letters, key=lambda a: rank.get(a.name, -1))  # replicas, then as reduced and traded
    kept = sorted(
        (a for a in found.letters if not a.kind.splits_tokens),
        key=lambda a: (a.kind.weights != "e", rank[a.name]),
    )
    split = [a for a in first if a.kind.splits_tokens]
    by_b = sorted((a for a in split if a.tokens == "b"), key=lambda a: a.attends != "b")
    by_l = sorted((a for a in split if a.tokens == "l"), key=lambda a: a.attends != "l")
    stays = {a.name for a in by_b if a.attends == "b"} | {a.name for a in by_l if a.attends == "l"}
    moves = [a for a in kept + split if a.name not in stays]
    over_l = those(by_l, lambda a: a.name in stays) + those(moves, lambda a: a.attends == "l")
    heads = sorted(kept, key=lambda a: a.kind.weights != "f") + split
    return Layout(
        roles=_NO_ROLES,
        storage=storage,
        e=those(kept, lambda a: a.kind.weights == "e"),
        f=those(order, lambda a: a.kind.weights == "f"),
        fg=those(kept, lambda a: a.kind.weights == "f" and a.heads == "g"),
        fk=those(kept, lambda a: a.kind.weights == "f" and a.heads == "k"),
        tokens_b=those(by_b, lambda a: True),
        tokens_l=those(by_l, lambda a: True),
        attn_b=those(by_b, lambda a: a.name in stays) + those(moves, lambda a: a.attends == "b"),
        attn_l="" if decode else over_l,
        attn_s=those(order, lambda a: a.attends == "l" and a.kind.attention == "context"),
        attn_k=those(heads, lambda a: a.attends == "k"),
        attn_g=those(heads, lambda a: a.attends == "g"),
    )
