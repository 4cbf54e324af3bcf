"""A family of clusters: one chip and one kind of fabric, still without a shape.

`tpu-v4` is a family; with the shape 4x4x4 its fabric is that of a cluster. Knows nothing about names and
texts (`cluster.py` reads those) nor where families are listed (`catalogue/`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from partita.specs.chip import Positive
from partita.specs.fabric import Kind, PhysicalAxis, StrictCount


class FamilyAxis(BaseModel):
    """A physical axis whose size is free; the other fields are those of `PhysicalAxis`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    link_bandwidth: Positive
    links: StrictCount = 1
    latency: Positive | None = None
    wraparound_multiple: StrictCount | None = None
    """A torus axis closes to a ring where its size is a multiple of this; None for one that never does."""
    in_network_reduction: bool = False
    max_size: StrictCount | None = None
    """Most chips along the axis, such as those of one switched domain; None for no limit of its own."""

    def sized(self, size: int) -> PhysicalAxis:
        multiple = self.wraparound_multiple
        return PhysicalAxis(
            kind=self.kind,
            size=size,
            link_bandwidth=self.link_bandwidth,
            links=self.links,
            latency=self.latency,
            wraparound=multiple is not None and size % multiple == 0,
            in_network_reduction=self.in_network_reduction,
        )


class ClusterFamily(BaseModel):
    """A kind of cluster the catalogue offers in many shapes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    chip: str
    """Name of the chip in the catalogue."""
    aliases: tuple[str, ...] = ()
    """Other names of the family."""
    max_chips: StrictCount | None = None
    example: Annotated[tuple[StrictCount, ...], Field(min_length=1)]
    """A usual shape, shown in messages."""
    fabric: Annotated[tuple[FamilyAxis, ...], Field(min_length=1, max_length=26)]
    """Slowest axis first."""

    @property
    def pattern(self) -> str:
        """The form of a cluster's name: `tpu-v4:AxBxC`."""
        return f"{self.name}:{'x'.join(chr(ord('A') + i) for i in range(len(self.fabric)))}"

    @property
    def example_name(self) -> str:
        """A cluster of this family: `tpu-v4:4x4x4`."""
        return f"{self.name}:{'x'.join(map(str, self.example))}"

    def shaped(self, shape: Sequence[int]) -> tuple[PhysicalAxis, ...]:
        """The fabric of this family in a shape; raises ValueError, in the user's words, where it has none."""
        if len(shape) != len(self.fabric):
            raise ValueError(f"needs {len(self.fabric)} sizes, not {len(shape)}")
        if min(shape) < 1:
            raise ValueError("every size must be at least 1")
        for place, (axis, size) in enumerate(zip(self.fabric, shape, strict=True), start=1):
            if axis.max_size is not None and size > axis.max_size:
                raise ValueError(f"size {place} ({axis.kind}) must be at most {axis.max_size}, not {size}")
        chips = 1
        for size in shape:
            chips *= size
        if self.max_chips is not None and chips > self.max_chips:
            raise ValueError(f"has {chips:,} chips; {self.name} goes up to {self.max_chips:,}")
        return tuple(axis.sized(size) for axis, size in zip(self.fabric, shape, strict=True))
