"""Collectives and FLOPs counted in a program, and the prediction in the same form, so that `==` compares.

A traced program is counted in its jaxpr, where collectives keep their axes and true dtypes. A compiled one is
a second witness: its HLO text tells whether the compiler added or dropped any; tensors that it merged into
one collective count as a message each, loops by the trip count that it proved. Size-1 axes are left out of
the prediction: they start nothing.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from partita.cost.ledger import Ledger
from partita.cost.number import fraction
from partita.engine.cpu import parts_in

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
    counts = Counts(flops=int(ledger.total("flops")))
    for entry in ledger.entries:
        if entry.messages:
            axes = "".join(a for a in entry.axes if sizes[a] > 1)
            sent, messages = fraction(entry.sent_bytes), int(entry.messages)
            counts.add(entry.kind, axes, sent, entry.repeat, messages)
    return counts


# -- the traced program ---------------------------------------------------------------------------------

_KINDS = {
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "psum": "all-reduce",
    "psum_invariant": "all-reduce",
    "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
}


def count_jaxpr(jaxpr: Any, sizes: Mapping[str, int]) -> Counts:
    """Collectives and dot FLOPs of one device in a (closed) jaxpr; a scan counts once per iteration.

    Raises ValueError for a `while` loop, whose length a trace does not hold, and for a branch.
    """
    counts = Counts()
    _walk(getattr(jaxpr, "jaxpr", jaxpr), 1, counts, sizes)
    return counts


def _walk(jaxpr: Any, times: int, counts: Counts, sizes: Mapping[str, int]) -> None:
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name in ("while", "cond"):
            raise ValueError(f"cannot count a program with {name!r}")
        if name in _KINDS:
            axes = eqn.params.get("axes") or eqn.params["axis_name"]
            axes = (axes,) if isinstance(axes, str) else axes
            chips = math.prod(sizes[axis] for axis in axes)
            for operand in eqn.invars:
                size = math.prod(operand.aval.shape) * operand.aval.dtype.itemsize
                counts.add(_KINDS[name], "".join(axes), sent_bytes(_KINDS[name], size, chips), times)
        elif name == "dot_general":
            counts.flops += times * _dot_flops(eqn)
        inner = times * (eqn.params["length"] if name == "scan" else 1)
        for value in eqn.params.values():
            if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                _walk(getattr(value, "jaxpr", value), inner, counts, sizes)


def _dot_flops(eqn: Any) -> int:
    """Two FLOPs for every multiply-add: the output's elements times the contracted ones.

    A product whose activations are written as several numbers counts as the one product that it is.
    """
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = eqn.invars[0].aval
    flops = 2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(left.shape[i] for i in contracted)
    return flops // parts_in(str(eqn.source_info.name_stack))


# -- the compiled program -------------------------------------------------------------------------------

_KIND = "all-gather|reduce-scatter|all-reduce|all-to-all|collective-permute"
_BYTES = {"f64": 8, "f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "s8": 1, "u8": 1, "pred": 1}

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_COLLECTIVE = re.compile(rf" = (.*?) ({_KIND})(-start)?\(")
_WHILE = re.compile(r" while\(.*\bbody=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CALL = re.compile(r"\b(?:to_apply|calls|called_computations)=\{?%?([\w.\-]+)")
_SHAPE = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_GROUP = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_NAMED = re.compile(r"replica_groups=mesh\[[^\]]*\] ?\{([^}]*)\}")


@dataclass
class _Computation:
    collectives: list[tuple[str, str, int, int]] = field(default_factory=list)
    """Kind, axes, bytes of the operand, chips."""
    calls: list[tuple[str, int]] = field(default_factory=list)  # computation, times


def count_hlo(text: str, axes: str, sizes: Sequence[int]) -> Counts:
    """Collectives of one device in a compiled program's text, for the mesh `axes` of `sizes`; no FLOPs.

    Raises ValueError for a loop of unknown length or a form of collective it cannot read.
    """
    computations, entry = _read(text, axes, sizes)
    counts = Counts()

    def walk(name: str, times: int) -> None:
        for kind, over, size, chips in computations[name].collectives:
            counts.add(kind, over, sent_bytes(kind, size, chips), times)
        for called, repeat in computations[name].calls:
            walk(called, times * repeat)

    walk(entry, 1)
    return counts


def _read(text: str, axes: str, sizes: Sequence[int]) -> tuple[dict[str, _Computation], str]:
    found: dict[str, _Computation] = {}
    entry, now = "", _Computation()
    for line in text.splitlines():
        if match := _COMPUTATION.match(line):
            now = found[match[1]] = _Computation()
            if line.startswith("ENTRY"):
                entry = match[1]
        elif match := _COLLECTIVE.search(line):
            if match[3]:
                raise ValueError(f"asynchronous collective not understood: {line.strip()[:120]}")
            now.collectives.extend(_collective(match[2], match[1], line, axes, sizes))
        elif match := _WHILE.search(line):
            trips = _TRIPS.search(line)
            if not trips:
                raise ValueError(f"loop of unknown length: {line.strip()[:120]}")
            now.calls.append((match[1], int(trips[1])))
        elif match := _CALL.search(line):
            now.calls.append((match[1], 1))
    return found, entry


def _collective(
    kind: str, result: str, line: str, axes: str, sizes: Sequence[int]
) -> list[tuple[str, str, int, int]]:
    bare = re.sub(r"\{[^}]*\}|/\*.*?\*/", "", result)  # without memory layouts and comments
    tensors = [
        _BYTES[dtype] * math.prod(int(n) for n in dims.split(",") if n)
        for dtype, dims in _SHAPE.findall(bare)
    ]
    if kind == "collective-permute":
        return [(kind, "", size, 0) for size in tensors]
    over, chips = _group(line, axes, sizes)
    match kind:
        case "all-to-all":  # one tensor, in a chunk for each chip
            tensors = [sum(tensors)]
        case "all-gather":  # from the result to the operand
            tensors = [size // chips for size in tensors]
        case "reduce-scatter":
            tensors = [size * chips for size in tensors]
    return [(kind, over, size, chips) for size in tensors]


def _group(line: str, axes: str, sizes: Sequence[int]) -> tuple[str, int]:
    """The mesh axes one group of a collective runs over, and how many chips it has."""
    if match := _NAMED.search(line):
        named = re.findall(r"'(\w+)'", match[1])
        return "".join(named), math.prod(sizes[axes.index(a)] for a in named)
    if match := _GROUP.search(line):
        members = [int(i) for i in match[1].split(",")]
    elif match := _IOTA.search(line):
        members = _iota_group(match)
    else:
        raise ValueError(f"replica groups not understood: {line.strip()[:200]}")
    places = []
    for member in members:
        place = []
        for size in reversed(sizes):
            member, position = divmod(member, size)
            place.append(position)
        places.append(place[::-1])
    over = [a for i, a in enumerate(axes) if len({place[i] for place in places}) > 1]
    return "".join(over), len(members)


def _iota_group(match: re.Match) -> list[int]:
    """First group of `[groups,members]<=[dims]T(order)`: an iota of dims, transposed, cut into rows."""
    members, dims = int(match[2]), [int(n) for n in match[3].split(",")]
    order = [int(n) for n in match[4].split(",")] if match[4] else list(range(len(dims)))
    strides = [math.prod(dims[i + 1 :]) for i in range(len(dims))]
    found = []
    for number in range(members):
        value = 0
        for axis in reversed(order):
            number, position = divmod(number, dims[axis])
            value += position * strides[axis]
        found.append(value)
    return found
