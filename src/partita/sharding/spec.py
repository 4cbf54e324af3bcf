"""The paper's notation as a type: dims, the mesh axes each is split over, and pending partial sums.

`"B_xy L E_z"` is a tensor [B, L, E] whose batch is split over mesh axes x and y (x-major) and whose E is
split over z; an axis not named holds replicas. `"B L F_yz partialsum-x"` is still to be summed over x
(Pope et al. 2022, section 3.1). Parts are blocks, but cached positions S are
interleaved (`interleave.py`). There are no sizes here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_DIM = re.compile(r"([A-Z])(?:_([^\W\dA-Z_]*))?")
_PARTIAL = re.compile(r"partialsum-([^\W\dA-Z_]+)")


@dataclass(frozen=True)
class Sharding:
    """Dims in order, the axes each is split over (major first), and the axes still to be summed over.

    Mesh axes are one lower-case letter each, so a group of axes is a string: `"yz"`.
    """

    dims: str
    axes: tuple[str, ...]
    partial: str = ""

    def __post_init__(self) -> None:
        if len(set(self.dims)) != len(self.dims) or len(self.axes) != len(self.dims):
            raise ValueError(f"dims must be distinct and each have its axes: {self.dims!r}, {self.axes!r}")
        used = "".join(self.axes) + self.partial
        if len(set(used)) != len(used):
            raise ValueError(f"a mesh axis is used twice in {self}")
        object.__setattr__(self, "partial", "".join(sorted(self.partial)))

    def __str__(self) -> str:
        dims = [dim + (f"_{axes}" if axes else "") for dim, axes in zip(self.dims, self.axes, strict=True)]
        return " ".join(dims + ([f"partialsum-{self.partial}"] if self.partial else []))

    def __getitem__(self, dim: str) -> str:
        """Axes that `dim` is split over; none for a dim the tensor does not have."""
        position = self.dims.find(dim)
        return self.axes[position] if position >= 0 else ""

    def split(self, dim: str, axes: str) -> Sharding:
        """The same sharding with `dim` split over `axes` instead."""
        new = tuple(axes if d == dim else a for d, a in zip(self.dims, self.axes, strict=True))
        return Sharding(self.dims, new, self.partial)

    def without(self, dim: str) -> Sharding:
        """The same sharding of a tensor that no longer has `dim`."""
        keep = [i for i, d in enumerate(self.dims) if d != dim]
        return Sharding("".join(self.dims[i] for i in keep), tuple(self.axes[i] for i in keep), self.partial)

    def only(self, dims: str) -> Sharding:
        """The sharding of these dims alone, split as they are here; nothing is still to be summed."""
        return Sharding(dims, tuple(self[dim] for dim in dims))

    def summing(self, partial: str) -> Sharding:
        """The same sharding with exactly `partial` still to be summed over."""
        return Sharding(self.dims, self.axes, partial)

    def rename(self, old: str, new: str) -> Sharding:
        """The same sharding with dim `old` called `new`."""
        return Sharding(self.dims.replace(old, new), self.axes, self.partial)


@lru_cache(maxsize=65536)
def parse(text: str) -> Sharding:
    """Reads the paper's notation; an empty subscript (`"E_"`) is an unsplit dim.

    Raises ValueError naming the part that is not a dim with its axes or a partial sum.
    """
    dims, axes, partial = "", [], ""
    for part in text.split():
        if match := _PARTIAL.fullmatch(part):
            partial += match[1]
        elif match := _DIM.fullmatch(part):
            dims += match[1]
            axes.append(match[2] or "")
        else:
            raise ValueError(f"{part!r} in {text!r} is neither a dim like E_xy nor partialsum-x")
    return Sharding(dims, tuple(axes), partial)


@lru_cache(maxsize=65536)
def contract(text: str, a: Sharding, b: Sharding) -> Sharding:
    """Sharding of `einsum(text, a, b)`, e.g. `"BLE,EMF->BLMF"`: a contracted split dim leaves a partial sum.

    Raises ValueError where the operands do not fit: a dim both have must be split alike, and a partial
    sum must be reduced first.
    """
    (left, right), out = text.split("->")[0].split(","), text.split("->")[1]
    if left != a.dims or right != b.dims:
        raise ValueError(f"einsum {text!r} does not fit operands {a} and {b}")
    if a.partial or b.partial:
        raise ValueError(f"einsum {text!r} of an unreduced partial sum: {a}, {b}")
    for dim in set(left) & set(right):
        if a[dim] != b[dim]:
            raise ValueError(f"einsum {text!r}: {dim} is split differently in {a} and {b}")
    axes = {dim: a[dim] or b[dim] for dim in left + right}
    summed = "".join(axes[dim] for dim in sorted(set(left + right) - set(out)))
    return Sharding(out, tuple(axes[dim] for dim in out), summed)
