"""The logical mesh: named axes and their sizes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from partita.errors import InputError

AXES = "xyzwuvabcdefghij"
"""Names an axis can have; a mesh without names of its own takes them in this order."""

_FORM = "name=size pairs such as x=4,y=4,z=4 (one lower-case letter each, sizes from 1 up)"


@dataclass(frozen=True)
class Mesh:
    """Logical mesh; `axes` is a string of one-letter names, `sizes` what each counts in chips."""

    axes: str
    sizes: tuple[int, ...]

    @property
    def chips(self) -> int:
        return math.prod(self.sizes)

    @property
    def size(self) -> dict[str, int]:
        return dict(zip(self.axes, self.sizes, strict=True))

    def __str__(self) -> str:
        return ",".join(f"{axis}={size}" for axis, size in zip(self.axes, self.sizes, strict=True))

    @staticmethod
    def of(shape: tuple[int, ...]) -> Mesh:
        """A mesh of this shape with the usual names x, y, z ..."""
        if not 1 <= len(shape) <= len(AXES) or min(shape) < 1:
            raise InputError("mesh", shape, f"1 to {len(AXES)} axes of size 1 or more are accepted")
        return Mesh(AXES[: len(shape)], tuple(shape))


def parse_mesh(text: str) -> Mesh:
    """Reads `x=4,y=4,z=4`. Raises InputError (field "mesh")."""
    axes, sizes = "", []
    for part in text.split(","):
        match = re.fullmatch(r"([a-z])=([0-9]{1,7})", part.strip())
        if not match or int(match[2]) < 1:
            raise InputError("mesh", text, f"{part.strip()!r} is not an axis; accepted are {_FORM}")
        if match[1] in axes:
            raise InputError("mesh", text, f"axis {match[1]} is named twice; accepted are {_FORM}")
        if len(axes) == len(AXES):
            raise InputError("mesh", text, f"1 to {len(AXES)} axes are accepted")
        axes += match[1]
        sizes.append(int(match[2]))
    return Mesh(axes, tuple(sizes))
