"""How chips are joined: the physical axes of a cluster.

Knows nothing about the mesh axes a layout uses, nor what travels over the links.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from partita.specs.chip import Positive
from partita.specs.model import Count

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
