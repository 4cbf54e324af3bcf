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
from partita.planner.space import Class, Counts, Ground, Slot
from partita.sharding.layout import Layout, Storage, ceil_to
from partita.sharding.roles import Roles
from partita.specs.model import Model

_LETTERS = [chr(code) for code in range(ord("a"), 0x500) if chr(code).islower()]
_NO_ROLES = Roles("", "", (), ())


@dataclass(frozen=True)
class Letter:
    """An axis: the part of a slot's role that splits sequences, query tokens or nothing, and K or G heads."""

    name: str
    slot: int
    kind: Class
    tokens: str  # what it splits of the tokens: "b", "l" or "" for nothing
    heads: str  # which dim of the heads it splits where it splits heads: "k", "g", else ""
    sizes: np.ndarray  # [rows, batches], either of them 1 where it does not matter

    @property
    def attends(self) -> str:
        """What attention splits over it: "b", "l" (or "s", the cache, in decode), heads "k" or "g", or ""."""
        wanted = self.kind.attention
        if wanted == "heads":
            return self.heads
        if wanted == "none" or (wanted == "batch" and self.kind.splits_tokens and not self.tokens):
            return ""
        if wanted == "context" or self.tokens == "l":
            return "l"
        return "b"


@dataclass(frozen=True)
class Spread:
    """The axes of all rows, and which rows are layouts at which batch [rows, batches]."""

    letters: tuple[Letter, ...]
    legal: np.ndarray

    def sizes(self) -> dict[str, np.ndarray]:
        return {letter.name: letter.sizes for letter in self.letters}


def spread(
    model: Model,
    ground: Ground,
    kinds: Sequence[Class],
    counts: Counts,
    batch: np.ndarray,
    queries: int,
    context: int,
    *,
    enough: bool,
) -> Spread:
    """The axes of `counts` [rows, slots, kinds] for the batches [1, batches] of `queries` new tokens each.

    A row is no layout at a batch where a gathered axis has fewer sequences and query tokens than chips, or
    attention fewer sequences or positions; replicas without tokens to split stand idle. `enough`: only where
    there is a sequence for every chip that tokens are split over, so that no split hangs on the batch.
    """
    legal = np.ones((len(counts), batch.shape[1]), bool)
    room_b, room_l = batch * np.ones((len(counts), 1)), np.full_like(legal, queries, dtype=float)
    pieces: list[tuple[int, Class, str, np.ndarray]] = []
    # the embedding fills replicas first, then what is stored on F, then on E, as `resolve` does
    order = sorted(range(len(kinds)), key=lambda c: ("", "f", "e").index(kinds[c].stored))
    for c in order:
        for s, slot in enumerate(ground.slots):
            size = counts[:, s, c][:, None]
            if not (size > 1).any():
                continue
            if not kinds[c].splits_tokens:
                pieces.append((s, kinds[c], "", size))
                continue
            if enough:
                room_b = room_b / size
                legal &= room_b >= 1
                pieces.append((s, kinds[c], "b", size))
                continue
            by_b = _largest_divisor(slot, size, room_b)
            room_b, rest = room_b / by_b, size / by_b
            by_l = _largest_divisor(slot, rest, room_l)
            room_l, rest = room_l / by_l, rest / by_l
            if kinds[c].stored:
                legal &= rest == 1
            pieces += [(s, kinds[c], "b", by_b), (s, kinds[c], "l", by_l), (s, kinds[c], "", rest)]
    letters = _heads(model, ground, [piece for piece in pieces if (piece[3] > 1).any()])
    for what, room in (("b", batch), ("l", context if queries == 1 else queries)):
        taken = np.ones((1, 1))
        for letter in letters:
            if letter.attends == what:
                taken = taken * letter.sizes
        legal &= taken <= room
    return Spread(tuple(letters), legal)


def _largest_divisor(slot: Slot, size: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Of each size, its largest divisor that is at most `room` [rows, batches]."""
    found = np.ones(np.broadcast_shapes(size.shape, room.shape))
    # few rows give this role any chips
    playing = np.nonzero(np.broadcast_to(size > 1, found.shape).any(axis=1))[0]
    size, room = (np.broadcast_to(n, found.shape)[playing] for n in (size, room))
    most = np.ones_like(size)
    for divisor in slot.divisors[1:]:
        most = np.where((size % divisor == 0) & (divisor <= room), divisor, most)
    found[playing] = most
    return found


def _heads(model: Model, ground: Ground, pieces: list[tuple[int, Class, str, np.ndarray]]) -> list[Letter]:
    """Splits what is split over heads between K and G: K while it divides, then whichever pads less."""
    left = np.full((1, 1), float(model.kv_heads))
    shares: list[tuple[np.ndarray, np.ndarray] | None] = []
    over_k, over_g = np.ones((1, 1)), np.ones((1, 1))
    for s, kind, _, size in pieces:
        if not kind.splits_heads:
            shares.append(None)
            continue
        common = np.gcd(size.astype(int), left.astype(int)).astype(float)
        if ground.slots[s].whole:
            common = np.where(common == size, size, 1)
        left = left / common
        shares.append((common, size / common))
        over_k, over_g = over_k * common, over_g * (size / common)
    kv, group = model.kv_heads, model.group

    def padded(k: np.ndarray, g: np.ndarray) -> np.ndarray:
        return ceil_to(kv, k) * ceil_to(group, g) + ceil_to(kv, k) / k / (2 * kv)

    # where G does not take what K left, K may take it with less padding
    all_k = padded(over_k * over_g, np.ones((1, 1))) < padded(over_k, over_g)
    names = iter(_LETTERS)
    letters = []
    for (s, kind, tokens, size), share in zip(pieces, shares, strict=True):
        parts = [("", size)]
        if share is not None:
            k, g = share
            parts = [("k", np.where(all_k, size, k)), ("g", np.where(all_k, 1, g))]
        letters += [
            Letter(next(names), s, kind, tokens, heads, part) for heads, part in parts if (part > 1).any()
        ]
    return letters


def links(ground: Ground, found: Spread) -> Links:
    """How many chips of each axis lie on each level."""
    parts = {}
    for letter in found.letters:
        slot = ground.slots[letter.slot]
        if slot.whole:
            whole = letter.sizes == slot.size
            parts[letter.name] = tuple(np.where(whole, part, 1) for part in slot.parts)
        else:
            parts[letter.name] = tuple(letter.sizes if part > 1 else 1 for part in slot.parts)
    return Links(ground.levels, parts)


def layout(found: Spread, decode: bool) -> Layout:
    """The layout of one phase over all axes, in the orders that `plan_storage` and `resolve` give them."""

    def those(letters: Sequence[Letter], chosen: Callable[[Letter], bool]) -> str:
        return "".join(letter.name for letter in letters if chosen(letter))

    def leaves(letter: Letter) -> int:
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
