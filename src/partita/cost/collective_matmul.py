"""Collective einsums run as loops (collective matmul), priced: what they send, and how much the dots hide.

Pope et al. 2022, section 3.5. A ring of K chips passes K - 1 shards on, one after the other, or both ways
round two in a step (of an even ring the last step brings half a shard from each side). The product is made in
K parts of d seconds; a step takes the longer of its bytes on their way and the parts that are multiplied
meanwhile, and what is left over is multiplied at the end (of a gather) or before (a scatter):

    one way     K - 1 times min(d, u) is hidden, u the seconds of a shard
    both ways   min(d, u), then min(2 d, u) for each further step, and min(2 d, u / 2) for a last half one

The start of each step's messages is never hidden. What software really hides is this times the profile's
looped_share: nothing where the chips are threads of one processor. Splitting a product moves more
activations: the sums of a gather are written and read once more for each part, the first operand of a scatter
is read for each.

The bound takes the permutations for the collective they stand for: overlap is no work, and what hiding it all
could reach is `Bound.overlapped_seconds`. Numbers and NumPy arrays alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from partita.cost.ledger import Entry, Loop, Sized
from partita.cost.links import Links
from partita.cost.local_sizes import LocalSizes
from partita.cost.number import Number
from partita.sharding.reshard import ReshardStep


def messages(chips: Number, entries: Number, two_way: bool) -> Number:
    """How many permutations a ring of `chips` makes, where a shard has `entries` along the dim it is cut
    by."""
    return chips - 1 + two_way * (chips % 2 == 0) * (entries > 1)


def steps(loop: Loop) -> Number:
    """How many steps of the loop send something; sending both ways at once is one step."""
    return loop.chips // 2 if loop.two_way else loop.chips - 1


def links_used(loop: Loop, links: Links, level: int, axes: str) -> Number:
    """The part of the links along `axes` on a level that a ring keeps busy.

    On a torus a ring over s physical axes goes along one of them at a time, one way round on one link of two.
    """
    if links.levels[level].kind != "torus":
        return 1
    return (1 if loop.two_way else 0.5) / links.starts(level, axes)


def hidden_seconds(loop: Loop, transfer_seconds: Number, dot_seconds: Number) -> Number:
    """The most seconds of one transfer that can be hidden behind the dots."""
    shard, part = transfer_seconds / np.maximum(loop.chips - 1, 1), dot_seconds / loop.chips
    if not loop.two_way:
        return (loop.chips - 1) * np.minimum(part, shard)
    pairs, half = (loop.chips - 1) // 2, np.minimum(2 * part, shard) * (loop.chips % 2 == 0)
    found = np.minimum(part, 2 * shard) + (pairs - 1) * np.minimum(2 * part, 2 * shard) + half
    alone = np.minimum(part, shard) * (loop.chips > 1)  # two chips: half a shard each way is all there is
    return np.where(pairs > 0, found, alone)[()]


def moved_again(loop: Loop, operand_bytes: Number, out_bytes: Number) -> Number:
    """Bytes of activations that a dot in parts reads and writes beyond those that the whole dot does."""
    if loop.instead == "all-gather":
        return 2 * (loop.chips - 1) * out_bytes
    return (loop.chips - 1) * operand_bytes


def split_dot(dot: Entry, loop: Loop, operand_bytes: Number, out_bytes: Number) -> Entry:
    """The entry of a dot once it is made in parts: each part writes the sums again, or reads an operand
    again."""
    return replace(dot, moved_bytes=dot.moved_bytes + moved_again(loop, operand_bytes, out_bytes))


def permutations(t: Sized, step: ReshardStep, loop: Loop, local: LocalSizes) -> Number:
    """How many permutations stand for the collective that takes t along the ring of the loop."""
    shard = step.before if step.kind == "all-gather" else step.after  # its dim as it travels
    entries = t.sizes[step.dim] // local.shards(shard[step.dim])
    return messages(loop.chips, entries, loop.two_way)
