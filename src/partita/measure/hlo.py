"""Counts a compiled program: reads the collectives in its HLO text, what the compiler made of them.

A second witness beside the trace: it tells whether the compiler added or dropped any. Tensors it merged into
one collective count as a message each. Loops count by the trip count the compiler proved.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from partita.measure.counts import Counts, sent_bytes

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
