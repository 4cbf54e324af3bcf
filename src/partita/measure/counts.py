"""Collectives and FLOPs counted in a program, and the prediction in the same form, so that `==` compares.

Size-1 axes are left out on both sides: they start nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from partita.cost.ledger import Ledger

Key = tuple[str, str]
"""(kind of collective, its mesh axes in alphabetical order)."""


@dataclass
class Counts:
    """Per chip and step: bytes sent and messages by kind and axes, and the FLOPs of all dots."""

    sent_bytes: dict[Key, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    messages: dict[Key, int] = field(default_factory=lambda: defaultdict(int))
    flops: int = 0

    def add(self, kind: str, axes: str, sent: Fraction, times: int, messages: int = 1) -> None:
        """Adds `times` collectives, each of `messages` that send `sent` bytes together."""
        key = (kind, "".join(sorted(axes)))
        self.sent_bytes[key] += sent * times
        self.messages[key] += messages * times

    def include(self, other: Counts) -> None:
        """Adds all of another program's."""
        for key, sent in other.sent_bytes.items():
            self.sent_bytes[key] += sent
            self.messages[key] += other.messages[key]
        self.flops += other.flops

    def same_collectives(self, other: Counts) -> bool:
        return self.sent_bytes == other.sent_bytes and self.messages == other.messages

    def by_kind(self) -> dict[str, int | float]:
        """Bytes sent per kind of collective."""
        found: dict[str, Fraction] = defaultdict(Fraction)
        for (kind, _), sent in self.sent_bytes.items():
            found[kind] += sent
        return {k: int(v) if v.denominator == 1 else float(v) for k, v in sorted(found.items())}


def sent_bytes(kind: str, operand_bytes: int, chips: int) -> Fraction:
    """Bytes a chip sends in one collective of `chips` chips on `operand_bytes` of its own.

    Pope et al. 2022, appendix A.1, with the exact (K-1)/K: counted here apart from the cost model, which
    is checked against it.
    """
    match kind:
        case "all-gather":
            return Fraction(operand_bytes * (chips - 1))
        case "reduce-scatter" | "all-to-all":
            return Fraction(operand_bytes * (chips - 1), chips)
        case "all-reduce":
            return Fraction(2 * operand_bytes * (chips - 1), chips)
        case "collective-permute":
            return Fraction(operand_bytes)
    raise ValueError(f"unknown collective {kind!r}")


def predicted(ledger: Ledger, sizes: Mapping[str, int]) -> Counts:
    """The cost interpreter's ledger in this form."""
    counts = Counts(flops=ledger.total("flops"))
    for entry in ledger.entries:
        if entry.messages:
            axes = "".join(a for a in entry.axes if sizes[a] > 1)
            counts.add(entry.kind, axes, Fraction(entry.sent_bytes), entry.repeat, entry.messages)
    return counts
