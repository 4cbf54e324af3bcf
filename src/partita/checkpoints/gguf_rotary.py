"""Rotary positions as GGUF files give them: a base, a part of the head, and how frequencies are scaled.

Llama 3's scaling is no metadata: the file has the divisor of each frequency as the tensor
`rope_freqs.weight`, and the numbers behind it are found again here. Knows nothing about the rest of a model.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.checkpoints.gguf_metadata import Metadata
from partita.errors import InputError
from partita.program.rotary import frequencies
from partita.specs.model import Model
from partita.specs.rotary import Llama3Scaling

UNDERSTOOD = (
    *("rope.freq_base", "rope.dimension_count", "rope.scale_linear", "rope.scaling.type"),
    *("rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.finetuned"),
    *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
)
_LENGTH, _LOW, _HIGH = 8192, 1.0, 4.0  # what every Llama 3.1 and 3.2 was published with


def rotary_fields(metadata: Metadata, at: str, head_dim: int, partial: bool) -> dict[str, Any]:
    """The fields of `Model` on rotary positions.

    at: what the keys begin with, such as "llama.". partial: whether part of a head may be turned.
    """
    key = at + "rope.dimension_count"
    turned = metadata.integer(key, head_dim)
    if partial and (turned > head_dim or turned < 2 or turned % 2):
        raise metadata.wrong(key, f"must be even and at most the head dimension, {head_dim}")
    if not partial and turned != head_dim:
        raise metadata.wrong(key, f"must equal the head dimension, {head_dim}; other values are not run")
    return {
        "positions": "rotary",
        "rotary_base": metadata.number(at + "rope.freq_base", 10_000.0),
        "rotary_fraction": turned / head_dim,
        "rotary_scaling": _scaling(metadata, at),
    }


def _scaling(metadata: Metadata, at: str) -> dict[str, Any] | None:
    kind = metadata.get(at + "rope.scaling.type")
    factor_key = at + "rope.scaling.factor"
    if kind is None and factor_key not in metadata:
        factor_key = at + "rope.scale_linear"  # its name in the first files
    factor = metadata.get(factor_key)
    if kind == "none" or (kind in (None, "linear") and factor in (None, 0, 1)):
        return None
    if kind in (None, "linear"):
        return {"kind": "linear", "factor": metadata.number(factor_key)}
    if kind != "yarn":
        raise metadata.wrong(at + "rope.scaling.type", "not run here; none, linear and yarn are")
    return {
        "kind": "yarn",
        "factor": metadata.number(factor_key),
        "original_max_position": metadata.integer(at + "rope.scaling.original_context_length", least=1),
        "beta_fast": metadata.number(at + "rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": metadata.number(at + "rope.scaling.yarn_beta_slow", 1.0),
    }


def with_divisors(model: Model, divisors: np.ndarray, path: str) -> Model:
    """The model with the scaling whose frequencies are those of its base divided by these.

    Raises InputError where no scaling of Llama 3 gives them.
    """
    plain = model.model_copy(update={"rotary_scaling": None})
    if divisors.shape == (model.rotary_dim // 2,) and np.isfinite(divisors).all() and (divisors >= 1).all():
        factor = float(divisors.max())
        if factor == 1:
            return plain
        scaling = Llama3Scaling(
            factor=factor, low_freq_factor=_LOW, high_freq_factor=_HIGH, original_max_position=_LENGTH
        )
        scaled = plain.model_copy(update={"rotary_scaling": scaling})
        if np.allclose(frequencies(plain) / divisors, frequencies(scaled), rtol=1e-4):
            return scaled
    message = "its rope_freqs.weight are not the divisors of Llama 3's rotary scaling, and no others are run"
    raise InputError("model", path, message)
