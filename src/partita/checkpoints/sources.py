"""The place of each parameter in the tensors of a file: written as text, checked, and read slice by slice.

A line of text says which tensor, and how its axes are made of the letters of dims that
`partita.specs.parameters` explains, slowest first:

    "self_attn.q_proj.weight KGD E"         [K G D, E]; the parameter q is [E, K, G, D]
    "self_attn.k_proj.weight KD E"          one part of several that are stacked along the letter they lack
    "attn.c_attn.weight E KGD+[KD]+KD"      the part in brackets of parts that lie one after the other
    "query_key_value.weight KTD E"          T: a key/value head's G queries, then its key, then its value
    "attn_q.weight KGd E"                   d: D with rotary pairs side by side, (2d, 2d + 1)
    "input_layernorm.weight E +1"           one is added to what is stored
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from partita.checkpoints.container import Index, first_few
from partita.errors import InputError
from partita.specs.model import Model
from partita.specs.parameters import Shape, all_parameters

ReadStored = Callable[[str, Index], np.ndarray]
"""Gives the values of a stored tensor, float32 or int8, at an index of it."""
Ranges = Mapping[str, range]
"""The part of each dim to read, by letter."""


@dataclass(frozen=True)
class _Axis:
    """One axis of a stored tensor: its letters, slowest first, with the size each has there."""

    letters: str
    sizes: tuple[int, ...]
    length: int
    """The length of the whole axis, which may hold other parts too."""
    start: int = 0
    """The position along the axis where the part begins."""
    offsets: tuple[int, ...] = ()
    """The position within each letter where the parameter's dim begins."""

    def read_range(self, wanted: Ranges) -> tuple[slice, Index, Shape]:
        """What to read of the axis, the shape to give that, and the slice of it for each letter."""
        parts = [
            range(wanted[letter].start + offset, wanted[letter].stop + offset)
            for letter, offset in zip(self.letters, self.offsets, strict=True)
        ]
        first = next((i for i, part in enumerate(parts) if len(part) > 1), len(parts) - 1)
        stride, begin, end = math.prod(self.sizes), self.start, self.start
        for i, (part, size) in enumerate(zip(parts[: first + 1], self.sizes, strict=False)):
            stride //= size
            begin += part.start * stride
            end += (part.stop if i == first else part.start) * stride
        shape = (*(len(part) for part in parts[: first + 1]), *self.sizes[first + 1 :])
        inner = tuple(slice(part.start, part.stop) for part in parts[first + 1 :])
        return slice(begin, end), (slice(None),) * (first + 1) + inner, shape


@dataclass(frozen=True)
class TensorPart:
    """One stored tensor, or part of one, that is a parameter or one of those stacked to it."""

    stored: str
    axes: tuple[_Axis, ...]
    dims: str
    """The parameter's dims; the one that no axis has is 1 here."""
    paired: bool
    """Whether rotary pairs lie side by side."""
    added: float
    """What is added to each stored value."""

    @property
    def shape(self) -> Shape:
        """The shape the stored tensor must have."""
        return tuple(axis.length for axis in self.axes)

    def read(self, read: ReadStored, wanted: Ranges, sizes: Mapping[str, int]) -> np.ndarray:
        """The values, their axes in the order of the parameter's dims."""
        asked = {**wanted, "D": range(sizes["D"])} if self.paired else wanted
        ranges = [axis.read_range(asked) for axis in self.axes]
        values = read(self.stored, tuple(part for part, _, _ in ranges))
        values = values.reshape(sum((shape for _, _, shape in ranges), ()))
        values = values[sum((inner for _, inner, _ in ranges), ())]
        letters = "".join(axis.letters for axis in self.axes)
        if self.paired:
            values = _halves(values, letters.index("D"), wanted["D"])
        values = values.transpose([letters.index(dim) for dim in self.dims if dim in letters])
        values = np.expand_dims(values, tuple(i for i, dim in enumerate(self.dims) if dim not in letters))
        return values + np.float32(self.added) if self.added else values


def _halves(values: np.ndarray, axis: int, wanted: range) -> np.ndarray:
    """The `wanted` positions of an axis, its pairs (2d, 2d + 1) reordered to pairs (d, d + D/2)."""
    size = values.shape[axis]
    order = np.arange(size).reshape(-1, 2).T.reshape(-1)
    return values.take(order[wanted.start : wanted.stop], axis)


@dataclass(frozen=True)
class Source:
    """A parameter as the parts of stored tensors that are stacked to it."""

    parts: tuple[TensorPart, ...]
    dims: str
    sizes: Mapping[str, int]

    @property
    def shape(self) -> Shape:
        return tuple(self.sizes[dim] for dim in self.dims)

    def read(self, read: ReadStored, index: Index, dtype: DTypeLike = np.float32) -> np.ndarray:
        """The values of the parameter at an index of it (() is all), contiguous in memory."""
        whole = (slice(None),) * len(self.dims) if index == () else index
        assert all(part.step in (None, 1) for part in whole), index
        wanted = {dim: range(self.sizes[dim])[part] for dim, part in zip(self.dims, whole, strict=True)}
        if not all(wanted.values()):
            return np.zeros([len(wanted[dim]) for dim in self.dims], dtype)
        stack = self.stack
        if stack is None:
            return np.ascontiguousarray(self.parts[0].read(read, wanted, self.sizes), dtype)
        result = np.empty([len(wanted[dim]) for dim in self.dims], dtype)
        axis = self.dims.index(stack)
        for i, which in enumerate(wanted[stack]):
            at = (slice(None),) * axis + (slice(i, i + 1),)
            result[at] = self.parts[which].read(read, wanted, self.sizes)
        return result

    @property
    def stack(self) -> str | None:
        """The dim along which parts are stacked, None where there is one part that has every dim."""
        letters = {letter for axis in self.parts[0].axes for letter in axis.letters}
        return next((dim for dim in self.dims if dim not in letters), None)


def source_of(lines: Sequence[str], dims: str, sizes: Mapping[str, int]) -> Source:
    """The source of an array of these dims from its lines; sizes: of every letter in dims and lines."""
    source = Source(tuple(_part(line, dims, sizes) for line in lines), dims, sizes)
    assert len(lines) == (sizes[source.stack] if source.stack else 1), lines
    return source


def _part(line: str, dims: str, sizes: Mapping[str, int]) -> TensorPart:
    stored, *words = line.split()
    added = float(words.pop()) if words[-1].startswith("+") else 0.0
    axes = tuple(_axis(word, dims, sizes) for word in words)
    return TensorPart(stored, axes, dims, paired="d" in "".join(words), added=added)


def _axis(word: str, dims: str, sizes: Mapping[str, int]) -> _Axis:
    parts = word.upper().split("+")
    mine = next((i for i, part in enumerate(parts) if part.startswith("[")), 0)
    letters, *others = (part.strip("[]") for part in (parts[mine], *parts[:mine], *parts[mine + 1 :]))
    lengths = [math.prod(_length(letter, sizes) for letter in part) for part in (letters, *others)]
    return _Axis(
        letters=letters.replace("T", "G" if "G" in dims else "M"),
        sizes=tuple(_length(letter, sizes) for letter in letters),
        length=sum(lengths),
        start=sum(lengths[1 : mine + 1]),
        offsets=tuple(sizes["G"] if letter == "T" and "G" not in dims else 0 for letter in letters),
    )


def _length(letter: str, sizes: Mapping[str, int]) -> int:
    return sizes["G"] + 2 if letter == "T" else sizes[letter]


@dataclass(frozen=True)
class Names:
    """How a kind of file calls and lays out every parameter it may have."""

    outside: Mapping[str, Sequence[str]]
    """The lines of each parameter outside the blocks."""
    layer: str
    """What the names of block {i} begin with."""
    block: Mapping[str, Sequence[str]]
    """The lines of each parameter of a block, without that beginning."""
    separate_norms: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The lines that differ where attention and feed-forward lie side by side and each has its norm."""
    harmless: Sequence[str] = ()
    """Patterns (as of fnmatch) of tensors that may be there and change nothing."""
    prefixes: Sequence[str] = ("",)
    """What all names may begin with, except those of `bare`; the first that the file has is taken."""
    bare: Sequence[str] = ("unembed",)

    def sources(self, model: Model, stored: Mapping[str, Shape]) -> dict[str, Source]:
        """The source of every parameter of the model in a file that holds these tensors."""
        embed = self.outside["embed"][0].split()[0]
        prefix = next((p for p in self.prefixes if p + embed in stored), self.prefixes[0])
        block = {**self.block, **self.separate_norms} if model.separate_norms else self.block
        sizes = {"K": model.kv_heads, "G": model.group, "D": model.head_dim}
        sources = {}
        for name, row in all_parameters(model).items():
            layer, _, last = name.removeprefix("layers.").rpartition(".")
            if layer:
                start, lines = prefix + self.layer.replace("{i}", layer), block[last]
            else:
                start, lines = "" if name in self.bare else prefix, self.outside[name]
            sources[name] = source_of([start + line for line in lines], row.dims, {**sizes, **row.sizes})
        return sources


def check_tensors(
    path: Path,
    sources: Mapping[str, Source],
    stored: Mapping[str, Shape],
    harmless: Sequence[str] = (),
    reasons: Mapping[str, str] | None = None,
) -> None:
    """Checks that a file holds exactly the tensors that these sources need.

    Raises one InputError (field "model", value the path) for all missing, extra and mis-shaped tensors.
    harmless: patterns (as of fnmatch) of names that may be there. reasons: part of an extra tensor's name ->
    what it is.
    """
    expected = {part.stored: part.shape for source in sources.values() for part in source.parts}
    extra = [
        name
        for name in stored
        if name not in expected and not any(fnmatchcase(name, pattern) for pattern in harmless)
    ]
    found = sorted({why for part, why in (reasons or {}).items() if any(part in name for name in extra)})
    why = f" ({', '.join(found)})" if found else ""
    missing = [name for name in expected if name not in stored]
    misshapen = [
        f"{name} ({stored[name]}, expected {shape})"
        for name, shape in expected.items()
        if stored.get(name, shape) != shape
    ]
    problems = [
        first_few("lacks", missing),
        first_few("has other shapes than its configuration gives for", misshapen),
        first_few(f"holds what is not run here{why}:", map(repr, extra)),
    ]
    if any(problems):
        message = "; ".join(problem for problem in problems if problem)
        raise InputError("model", str(path), f"{message}; give a checkpoint with exactly its model's weights")
