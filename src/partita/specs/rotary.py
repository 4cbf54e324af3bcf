"""How rotary positions are stretched beyond the length a model was first trained for: the kinds and numbers.

Knows nothing about the rest of a model, nor what the numbers do to frequencies (`program/rotary.py` does).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Stretch = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Number = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Length = Annotated[int, Field(ge=1)]


class _Scaling(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LinearScaling(_Scaling):
    """Every frequency is divided by `factor` (Chen et al. 2023, arXiv 2306.15595)."""

    kind: Literal["linear"] = "linear"
    factor: Stretch


class Llama3Scaling(_Scaling):
    """Low frequencies are divided by `factor`, high ones kept, those between blended (Llama 3, arXiv
    2407.21783). How often a frequency turns in `original_max_position` tokens decides: at most
    `low_freq_factor` times is low, at least `high_freq_factor` times is high."""

    kind: Literal["llama3"] = "llama3"
    factor: Stretch
    low_freq_factor: Number
    high_freq_factor: Number
    original_max_position: Length

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Llama3Scaling:
        if self.low_freq_factor >= self.high_freq_factor:
            low, high = self.low_freq_factor, self.high_freq_factor
            raise ValueError(f"low_freq_factor ({low}) must be below high_freq_factor ({high})")
        return self


class YarnScaling(_Scaling):
    """As llama3, blended over the numbers of a head and not over frequencies (YaRN, arXiv 2309.00071)."""

    kind: Literal["yarn"] = "yarn"
    factor: Stretch
    original_max_position: Length
    beta_fast: Number = 32.0
    """Turns in `original_max_position` tokens from which on a frequency is kept."""
    beta_slow: Number = 1.0
    """Turns up to which it is divided by `factor`."""
    truncate: bool = True
    """Whether the ends of the blend are rounded outwards to whole pairs."""
    attention_factor: Number | None = None
    """What sines and cosines are multiplied by; None for 0.1 ln(factor) + 1."""


class OtherScaling(_Scaling):
    """A kind that is known by its name alone: enough for planning, not for running."""

    kind: Literal["other"] = "other"
    name: str


def _named(value: Any) -> Any:
    """A bare name, as files of earlier versions have it."""
    return {"kind": "other", "name": value} if isinstance(value, str) else value


RotaryScaling = Annotated[
    LinearScaling | Llama3Scaling | YarnScaling | OtherScaling,
    Field(discriminator="kind"),
    BeforeValidator(_named),
]
