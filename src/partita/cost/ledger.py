"""What a pass of the program costs: one entry per operation, and their sums; and the tensors it is run on.

Every number is per chip, but for the global sizes of `Sized`. Seconds are in `roofline.py` and `estimate.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from partita.cost.number import Amount, Number
from partita.sharding.spec import Sharding


@dataclass(frozen=True)
class Loop:
    """A looped collective einsum: the collective that its permutations stand for, and the dots that hide
    them."""

    name: str  # as an option names it, e.g. "ffn/in/gather"
    instead: str  # the collective: "all-gather" or "reduce-scatter"
    two_way: bool
    chips: Number  # of the ring
    dots: tuple[Entry, ...]  # which are in the ledger too; each is done in as many parts as there are chips


@dataclass(frozen=True)
class Entry:
    """One operation of one chip, done `repeat` times a step."""

    scope: str  # where in the program, e.g. "layer/ffn/in"
    kind: str  # "einsum", "lookup", "read" (of a cache) or a collective
    what: str  # the einsum, or empty
    before: tuple[Sharding, ...]  # of the operands
    after: Sharding
    axes: str = ""  # mesh axes of a collective
    repeat: int = 1
    flops: Number = 0  # of the dot as computed, masked part included
    needed_flops: Number = 0  # without what a causal mask throws away
    weight_bytes: Number = 0  # read from memory
    kv_bytes: Amount = 0  # read from memory
    second: Number = 0  # elements of a dot's second operand: FLOPs / 2 / the rows that meet each of them
    moved_bytes: Number = 0  # of activations, read and written
    sent_bytes: Amount = 0  # into the network
    sums: str = ""  # number format of what is sent, where it is partial sums that may travel in another
    messages: Number = 0  # collectives started
    loop: Loop | None = None  # of the permutations of a looped collective einsum


@dataclass
class Ledger:
    """Entries in program order, and the most bytes any operation holds beside what is stored."""

    entries: list[Entry] = field(default_factory=list)
    held_bytes: Number = 0
    layers: int = 0
    sequences: Number = 0  # that a chip attends to in each layer

    def total(self, column: str) -> Amount:
        """The sum over the step of a column such as "flops", repeats counted."""
        found: Amount = 0
        for entry in self.entries:
            number = getattr(entry, column)
            if isinstance(number, int) and not number:
                continue
            found = found + (number if entry.repeat == 1 else number * entry.repeat)
        return found

    def collectives(self) -> dict[tuple[str, str], tuple[Amount, Number]]:
        """Bytes sent per chip and messages of the whole step, by kind and axes of the collectives."""
        found: dict[tuple[str, str], tuple[Amount, Number]] = {}
        for entry in self.entries:
            if entry.axes:
                sent, messages = found.get((entry.kind, entry.axes), (0, 0))
                found[entry.kind, entry.axes] = (
                    sent + entry.sent_bytes * entry.repeat,
                    messages + entry.messages * entry.repeat,
                )
        return found


@dataclass(frozen=True)
class Sized:
    """A tensor's sharding, global sizes and number format; `settles` is its format once fully summed."""

    sharding: Sharding
    sizes: Mapping[str, Number]
    format: str
    settles: str = ""
    kind: str = "activation"  # or "weight", "gathered" (a weight that has moved), "cache", "read" (a cache)
    stored_bytes: Number = 0  # of a weight, before it was gathered
    scale: Sized | None = None  # of int8 numbers: what some of the dims are multiplied by
    moved: Number = 0  # of a gathered weight, how often it is held: along axes of one chip nothing moves
