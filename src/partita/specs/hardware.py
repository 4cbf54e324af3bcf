"""Chips, the physical axes that join them, and families of clusters that have no shape yet.

Every figure is the peak that a maker publishes; efficiencies are in `profile.py`. `tpu-v4` is a family: with
the shape 4x4x4 its fabric is that of a cluster (`cluster.py`). The axes here are physical; the mesh axes of a
layout are in `sharding`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from partita.errors import InputError
from partita.specs.formats import Format
from partita.specs.model import Count

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]

MEMORY_UTILIZATION = 0.9
"""Part of a chip's memory that a server uses unless told otherwise: vLLM's default (gpu_memory_utilization),
and TensorRT-LLM's for what the weights leave (free_gpu_memory_fraction)."""


def read_utilization(value: object, field: str) -> float:
    """A part of a chip's memory, from a number or a text.

    Raises InputError (named `field`) unless it is above 0 and at most 1.
    """
    try:
        share = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        share = math.nan
    if isinstance(value, bool) or not 0 < share <= 1:
        raise InputError(field, value, "a part of a chip's memory is accepted, above 0 and at most 1: 0.9")
    return share


class Chip(BaseModel):
    """An accelerator. FLOP/s are dense: a multiplication and an addition count as two."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    peak_flops: Annotated[dict[Format, Positive], Field(min_length=1)]
    """FLOP/s of matrix multiplication, by the format of its operands."""
    hbm_bytes: Annotated[int, Field(gt=0)]
    """Bytes of memory."""
    hbm_bandwidth: Positive
    """Bytes per second read from that memory."""
    runtime_bytes: Annotated[int, Field(ge=0, strict=True)] = 0
    """Bytes of that memory which driver and runtime keep for themselves; 0 where no figure is known."""
    price_per_hour: Positive | None = None
    """Price of one chip for one hour, in whatever currency; None where none is given."""

    def peak(self, activations: Format) -> float:
        """FLOP/s of matrix multiplications whose operands have this format.

        Raises InputError on `activations` where the chip has no figure for the format.
        """
        figure = self.peak_flops.get(activations)
        if figure is None:
            known = ", ".join(self.peak_flops)
            raise InputError("activations", activations, f"{self.name} has no peak for it; it has {known}")
        return figure

    def usable_bytes(self, utilization: float) -> int:
        """Bytes of the memory that may be used, where that is so large a part of it; whole bytes, rounded
        down from the exact product."""
        return int(Fraction(str(utilization)) * self.hbm_bytes)


Kind = Literal["torus", "switch", "network"]
StrictCount = Annotated[Count, Field(strict=True)]


class PhysicalAxis(BaseModel):
    """One physical axis of a fabric.

    torus: neighbours joined in a line, or a ring where `wraparound`. switch: every chip of the axis behind
    one switched domain (NVLink). network: switched domains joined by InfiniBand or Ethernet.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    size: StrictCount
    """Chips along the axis; for an axis over others, the number of groups they form."""
    link_bandwidth: Positive
    """Bytes per second in one direction over one link."""
    links: StrictCount = 1
    """Links of one chip on this axis: 2 for a torus, one to each neighbour."""
    latency: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)] | None = None
    """Seconds per message; None where it was not measured."""
    wraparound: bool = False
    """Whether a torus axis is closed to a ring."""
    in_network_reduction: bool = False
    """Whether the switches sum (NVLink SHARP): an all-reduce then sends its bytes once, not twice."""

    @model_validator(mode="after")
    def _fits_the_kind(self) -> PhysicalAxis:
        if self.wraparound and self.kind != "torus":
            raise ValueError(f"wraparound is for a torus axis, not for a {self.kind} axis")
        if self.in_network_reduction and self.kind == "torus":
            raise ValueError("in_network_reduction is for a switch or network axis, not for a torus axis")
        return self

    @property
    def bandwidth(self) -> float:
        """Bytes per second one chip sends over all its links on this axis."""
        return self.links * self.link_bandwidth


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
