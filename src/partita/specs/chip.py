"""One accelerator: how fast it multiplies, and how much memory it reads how fast.

Knows nothing about other chips or how they are joined (`fabric.py`), nor about efficiency: every figure
is the peak its maker publishes.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from partita.errors import InputError
from partita.specs.formats import Format

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]


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
