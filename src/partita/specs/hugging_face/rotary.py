"""Rotary positions, in the forms that configurations have given them over the years.

Older ones have `rope_theta` and `rope_scaling`, newer ones one `rope_parameters`, which may hold an object
for each kind of layer. Knows nothing about the rest of a model.
"""

from __future__ import annotations

from typing import Any

from partita.specs.hugging_face.family import Config, refuse

FIELDS = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rope_interleaved")


def rotary(config: Config, base: float = 10_000.0, fraction: float = 1.0) -> dict[str, Any]:
    """The fields of `Model` on rotary positions. base, fraction: the family's where the file has none.

    The fraction of MLA models is of the head's rotary part already, so theirs is 1.
    """
    parameters = config.get("rope_parameters", {})
    parameters = parameters.get("full_attention", parameters)
    scaling = config.get("rope_scaling", {})
    kind = _kind("rope_scaling", scaling) or _kind("rope_parameters", parameters)
    own = parameters.get("partial_rotary_factor")
    part = own if own is not None else config.get("partial_rotary_factor", fraction)
    if not 0 < part <= 1:
        raise refuse("partial_rotary_factor", part, "a number above 0 and at most 1")
    return {
        "positions": "rotary",
        "rotary_base": parameters.get("rope_theta", config.get("rope_theta", base)),
        "rotary_scaling": kind,
        "rotary_fraction": part,
        "rotary_pairs": "interleaved" if config.get("rope_interleaved") else "halves",
    }


def local_base(config: Config, base: float) -> float:
    """The base of the local layers. base: the family's where the file has none."""
    own = config.get("rope_parameters", {}).get("sliding_attention", {})
    return own.get("rope_theta", config.get("rope_local_base_freq", base))


def _kind(name: str, scaling: Any) -> str | None:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if not isinstance(kind, str):
        raise refuse(f"{name}.rope_type", kind, "the name of a kind of scaling")
    return None if kind == "default" else kind
