"""Positions: rotary ones, in the forms that configurations have given them over the years, and windows.

Older configurations have `rope_theta` and `rope_scaling`, newer ones one `rope_parameters`, which may hold an
object for each kind of layer. Windows say which layers attend to the last tokens only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from partita.specs.hugging_face.family import Config, refuse

ROTARY_FIELDS = (
    *("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rope_interleaved"),
    "original_max_position_embeddings",
)
_PARTS = {
    *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "finetuned"),
    *("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    *("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim"),
}


def rotary(config: Config, base: float = 10_000.0, fraction: float = 1.0) -> dict[str, Any]:
    """The fields of `Model` on rotary positions, with the family's base and fraction where the file has none.

    The fraction of MLA models is of the head's rotary part already, so theirs is 1.
    """
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    found = config.get(name, {})
    found = found.get("full_attention", found)
    parameters = {key: value for key, value in found.items() if value is not None}
    part = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", fraction))
    if not 0 < part <= 1:
        raise refuse("partial_rotary_factor", part, "a number above 0 and at most 1")
    return {
        "positions": "rotary",
        "rotary_base": parameters.get("rope_theta", config.get("rope_theta", base)),
        "rotary_scaling": _scaling(config, name, parameters),
        "rotary_fraction": part,
        "rotary_pairs": "interleaved" if config.get("rope_interleaved") else "halves",
    }


def local_base(config: Config, base: float) -> float:
    """The base of the local layers, the family's where the file has none."""
    own = config.get("rope_parameters", {}).get("sliding_attention", {})
    kind = _kind("rope_parameters.sliding_attention", own)
    if kind != "default":
        raise refuse("rope_parameters.sliding_attention.rope_type", kind, "default, of the local layers")
    return own.get("rope_theta", config.get("rope_local_base_freq", base))


def _kind(name: str, scaling: Any) -> str:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if not isinstance(kind, str):
        raise refuse(f"{name}.rope_type", kind, "the name of a kind of scaling")
    return kind


def _scaling(config: Config, name: str, scaling: Config) -> dict[str, Any] | None:
    """The fields of a scaling from what the file has, without its nulls, under `name`."""
    kind = _kind(name, scaling)
    if kind not in ("default", "linear", "llama3", "yarn"):
        return {"kind": "other", "name": kind}
    for key in scaling:
        if key not in _PARTS:
            raise refuse(f"{name}.{key}", scaling[key], f"only what {kind} scaling has")
    if kind == "default":
        return None

    def number(key: str, least: float = 0.0, otherwise: float | None = None) -> float:
        value = scaling.get(key, otherwise)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not max(least, 1e-9) <= value < math.inf:
            words = f"a number of at least {least:g}" if least else "a number above zero"
            raise refuse(f"{name}.{key}", value, f"{words}, for {kind} scaling")
        return float(value)

    if kind == "linear":
        return {"kind": kind, "factor": number("factor", 1)}
    first = scaling.get("original_max_position_embeddings", config.get("max_position_embeddings"))
    first = config.get("original_max_position_embeddings", first)
    scaling = {**scaling, "original_max_position_embeddings": first}
    length = int(number("original_max_position_embeddings", 1))
    if kind == "llama3":
        low, high = number("low_freq_factor"), number("high_freq_factor")
        if low >= high:
            raise refuse(f"{name}.low_freq_factor", low, f"a number below high_freq_factor ({high:g})")
        found = {"low_freq_factor": low, "high_freq_factor": high, "original_max_position": length}
        return {"kind": kind, "factor": number("factor", 1), **found}
    longest = config.get("max_position_embeddings", length)
    factor = number("factor", 1, otherwise=longest / length)
    truncate = scaling.get("truncate", True)
    if not isinstance(truncate, bool):
        raise refuse(f"{name}.truncate", truncate, "true or false")
    found = {"factor": factor, "original_max_position": length, "truncate": truncate}
    found |= {
        "beta_fast": number("beta_fast", otherwise=32.0),
        "beta_slow": number("beta_slow", otherwise=1.0),
    }
    return {"kind": kind, **found, "attention_factor": _attention_factor(scaling, factor, number)}


def _attention_factor(
    scaling: Mapping[str, Any], factor: float, number: Callable[[str], float]
) -> float | None:
    """The factor in the file, or from two scales of ln(factor) as DeepSeek has them; None for the usual
    one."""
    if "attention_factor" in scaling:
        return number("attention_factor")
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        log = math.log(factor)
        return (0.1 * number("mscale") * log + 1) / (0.1 * number("mscale_all_dim") * log + 1)
    return None


WINDOW_FIELDS = (
    "sliding_window",
    "layer_types",
    "use_sliding_window",
    "max_window_layers",
    "sliding_window_pattern",
)


def windows(config: Config, period: int | None = None) -> dict[str, Any]:
    """The fields of `Model` on windows; in the family's form one layer in every `period` is global."""
    window = config.get("sliding_window")
    types = config.get("layer_types")
    if types is not None:
        window, period = _from_types(types, config["num_hidden_layers"], window)
    return {"window": window, "global_period": period if window else None}


def windows_above(config: Config) -> dict[str, Any]:
    """The windows of Qwen: with `use_sliding_window`, the layers from `max_window_layers` on are local."""
    switch = config.get("use_sliding_window", False)
    if "layer_types" in config:
        found = windows(config)
        if found["window"] and not switch:
            raise refuse("use_sliding_window", switch, "true, where layer_types has sliding_attention")
        return found
    if not switch:
        return {"window": None, "global_period": None}
    first, layers = config.get("max_window_layers", 28), config["num_hidden_layers"]
    if first >= layers:
        return {"window": None, "global_period": None}
    if first:
        words = f"0 or at least the {layers} layers, where use_sliding_window is true"
        raise refuse("max_window_layers", first, words)
    return windows(config)


def _from_types(types: Any, layers: int, window: int | None) -> tuple[int | None, int | None]:
    """A window and a period from the kind of each layer."""
    words = "full_attention or sliding_attention for each layer, a full one every n-th"
    if not isinstance(types, list) or not all(t in ("full_attention", "sliding_attention") for t in types):
        raise refuse("layer_types", types, words)
    if not types:
        return None, None
    if len(types) != layers:
        raise refuse("layer_types", types, f"{words}, {layers} in all")
    if "sliding_attention" not in types:
        return None, None
    if window is None:
        raise refuse("layer_types", types, "full_attention for every layer, or sliding_window be given")
    if "full_attention" not in types:
        return window, None
    period = types.index("full_attention") + 1
    if types != ["full_attention" if i % period == 0 else "sliding_attention" for i in range(1, layers + 1)]:
        raise refuse("layer_types", types, words)
    return window, period
