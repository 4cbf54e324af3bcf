"""Number formats: how many bytes each kind of tensor takes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Format = Literal["f32", "bf16", "int8"]
Float = Literal["f32", "bf16"]
BYTES: dict[str, int] = {"f32": 4, "bf16": 2, "int8": 1}


class Formats(BaseModel):
    """Number formats of one phase. `reduce` is the format in which partial sums travel."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weights: Format = "bf16"
    activations: Float = "bf16"
    kv: Format = "bf16"
    reduce: Float = "f32"

    @classmethod
    def all_in(cls, format: str) -> Formats:
        """Weights, activations and cache in one format. Raises ValidationError where one cannot have it."""
        return cls.model_validate(dict.fromkeys(("weights", "activations", "kv"), format))
