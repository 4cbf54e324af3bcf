"""Positions: rotary ones, in the forms that configurations have given them over the years, and windows.

Older configurations have `rope_theta` and `rope_scaling`, newer ones one `rope_parameters`, which in Gemma 3
holds an object for each kind of layer. Windows say which layers attend to the last tokens only. Source:
`RotaryEmbeddingConfigMixin` and the families' own classes in the transformers library, version 5.24.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from partita.specs.hugging_face.family import Config, refuse

ROTARY_FIELDS = (
    *("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rope_interleaved"),
    "original_max_position_embeddings",
)
KINDS_OF_LAYERS = ("full_attention", "sliding_attention")
_PARTS = {
    *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "finetuned"),
    *("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    *("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim"),
    *("short_factor", "long_factor"),
    *("attn_factor", "extrapolation_factor"),  # of other libraries' YaRN: transformers ignores them
}


@dataclass(frozen=True)
class Rope:
    """What a family makes of rotary positions, where `rope_parameters` leave it open."""

    base: float = 10_000.0
    base_name: str = "rope_theta"
    """The field beside `rope_parameters` that gives the base."""
    part: float = 1.0
    part_name: str | None = "partial_rotary_factor"
    """The field beside `rope_parameters` that gives the part of a head that turns; None where none does."""
    partial: bool = False
    """Whether a part of a head may turn at all. Where not, transformers ignores the part of unscaled
    positions, and cannot run scaled ones with it."""
    length: int | None = None
    """`max_position_embeddings` where the file has none."""


def rotary(config: Config, rope: Rope = Rope()) -> dict[str, Any]:
    """The fields of `Model` on rotary positions, from one object of them or none."""
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    found = config.get(name, {})
    for kind in KINDS_OF_LAYERS:
        if kind in found:
            raise refuse(f"{name}.{kind}", found[kind], "one object for all layers, in this family")
    first = config.get("original_max_position_embeddings")  # before the scaling's own
    own = {} if first is None else {"original_max_position_embeddings": first}
    return _read(config, name, {**found, **own}, rope)


def rotary_by_layer(config: Config, rope: Rope, local_base: float) -> dict[str, Any]:
    """The same of a family whose local layers turn in their own way: `rope_parameters` holds an object for
    either kind of layer, and what else it holds is ignored."""
    found = config.get("rope_parameters", {})
    name, local_name = (f"rope_parameters.{kind}" for kind in KINDS_OF_LAYERS)
    whole, own = (found.get(kind) or {} for kind in KINDS_OF_LAYERS)
    if config.get("rope_scaling"):
        name, whole = "rope_scaling", {**whole, **config["rope_scaling"]}
    kind = _kind(local_name, own)
    if kind != "default":
        raise refuse(f"{local_name}.rope_type", kind, "default, of the local layers")
    whole = {key: value for key, value in whole.items() if key != "truncate"}  # not looked for there
    base = own.get("rope_theta") or config.get("rope_local_base_freq", local_base)
    return _read(config, name, whole, rope) | {"local_rotary_base": base}


def _read(config: Config, name: str, found: Config, rope: Rope) -> dict[str, Any]:
    parameters = {key: value for key, value in found.items() if value is not None}
    outside = config.get(rope.part_name, rope.part) if rope.part_name else rope.part
    part = parameters.get("partial_rotary_factor", outside)
    if not 0 < part <= 1:
        raise refuse("partial_rotary_factor", part, "a number above 0 and at most 1")
    kind = _kind(name, parameters)
    if part != 1 and not rope.partial:
        if kind != "default":
            words = f"1, with {kind} scaling: in this family only whole heads turn"
            raise refuse("partial_rotary_factor", part, words)
        part = 1.0
    return {
        "positions": "rotary",
        "rotary_base": parameters.get("rope_theta", config.get(rope.base_name, rope.base)),
        "rotary_scaling": _scaling(
            name, kind, parameters, config.get("max_position_embeddings", rope.length)
        ),
        "rotary_fraction": part,
    }


def _kind(name: str, scaling: Any) -> str:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if not isinstance(kind, str):
        raise refuse(f"{name}.rope_type", kind, "the name of a kind of scaling")
    return kind


def _scaling(name: str, kind: str, scaling: Config, longest: int | None) -> dict[str, Any] | None:
    """The fields of a scaling from what the file has, without its nulls, under `name`; longest: the length
    that the file gives for the model."""
    listed = "short_factor" in scaling and "long_factor" in scaling
    if kind not in _NUMBERS or (kind == "longrope" and not listed):
        return {"kind": "other", "name": kind}
    for key in scaling:
        if key not in _PARTS:
            raise refuse(f"{name}.{key}", scaling[key], f"only what {kind} scaling has")
    numbers = Numbers(name, kind, scaling, longest)
    return None if kind == "default" else {"kind": kind, **_NUMBERS[kind](numbers)}


@dataclass(frozen=True)
class Numbers:
    """The numbers of one scaling, each checked when it is asked for."""

    name: str
    kind: str
    scaling: Config
    longest: int | None

    def number(self, key: str, least: float = 0.0, otherwise: float | None = None) -> float:
        return self.checked(key, self.scaling.get(key, otherwise), least)

    def checked(self, key: str, value: Any, least: float = 0.0) -> float:
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not max(least, 1e-9) <= value < math.inf:
            words = f"a number of at least {least:g}" if least else "a number above zero"
            raise refuse(f"{self.name}.{key}", value, f"{words}, for {self.kind} scaling")
        return float(value)

    def several(self, key: str) -> tuple[float, ...]:
        value = self.scaling[key]
        if not isinstance(value, list):
            raise refuse(f"{self.name}.{key}", value, f"a list of numbers, for {self.kind} scaling")
        return tuple(self.checked(key, each) for each in value)

    @property
    def first(self) -> int:
        """The length that the model was trained for before it was stretched."""
        key = "original_max_position_embeddings"
        return int(self.number(key, 1, otherwise=self.longest))

    @property
    def growth(self) -> float:
        """The factor, where the file has none that of the two lengths."""
        return self.number("factor", 1, otherwise=(self.longest or self.first) / self.first)


def _linear(numbers: Numbers) -> dict[str, Any]:
    return {"factor": numbers.number("factor", 1)}


def _dynamic(numbers: Numbers) -> dict[str, Any]:
    """Its original length is `max_position_embeddings`, whatever else the file has."""
    length = numbers.checked("max_position_embeddings", numbers.longest, 1)
    return {"factor": numbers.number("factor", 1), "original_max_position": int(length)}


def _llama3(numbers: Numbers) -> dict[str, Any]:
    low, high = numbers.number("low_freq_factor"), numbers.number("high_freq_factor")
    if low >= high:
        words = f"a number below high_freq_factor ({high:g})"
        raise refuse(f"{numbers.name}.low_freq_factor", low, words)
    found = {"low_freq_factor": low, "high_freq_factor": high, "original_max_position": numbers.first}
    return {"factor": numbers.number("factor", 1), **found}


def _yarn(numbers: Numbers) -> dict[str, Any]:
    scaling, factor = numbers.scaling, numbers.growth
    truncate = scaling.get("truncate", True)
    if not isinstance(truncate, bool):
        raise refuse(f"{numbers.name}.truncate", truncate, "true or false")
    # 0 stands for the usual number there
    betas = {
        key: numbers.checked(key, scaling.get(key) or usual)
        for key, usual in (("beta_fast", 32.0), ("beta_slow", 1.0))
    }
    found = {"factor": factor, "original_max_position": numbers.first, "truncate": truncate, **betas}
    return {**found, "attention_factor": _attention_factor(scaling, factor, numbers.number)}


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


def _longrope(numbers: Numbers) -> dict[str, Any]:
    own = numbers.scaling.get("attention_factor")
    return {
        "short_factors": numbers.several("short_factor"),
        "long_factors": numbers.several("long_factor"),
        "original_max_position": numbers.first,
        "factor": numbers.growth,
        "attention_factor": None if own is None else numbers.number("attention_factor"),
    }


_NUMBERS: Mapping[str, Callable[[Numbers], dict[str, Any]]] = {
    "default": lambda numbers: {},
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


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
    if "layer_types" in config:
        return _from_types(config["layer_types"], config["num_hidden_layers"], window)
    return {"window": window, "global_period": period if window else None}


def windows_above(config: Config) -> dict[str, Any]:
    """The windows of Qwen: with `use_sliding_window`, the layers from `max_window_layers` on are local."""
    switch, window = config.get("use_sliding_window", False), config.get("sliding_window")
    layers, first = config["num_hidden_layers"], config.get("max_window_layers", 28)
    if "layer_types" in config:
        found = windows(config)
        if found["window"] and not switch:
            raise refuse("use_sliding_window", switch, "true, where layer_types has sliding_attention")
        return found
    if not switch or window is None:
        return {"window": None, "global_period": None}
    return _fields(window, [i < first for i in range(layers)])


def _from_types(types: Any, layers: int, window: int | None) -> dict[str, Any]:
    """The fields from the kind of each layer."""
    words = "full_attention or sliding_attention for each layer"
    if not isinstance(types, list) or not all(t in KINDS_OF_LAYERS for t in types):
        raise refuse("layer_types", types, words)
    if len(types) != layers:
        raise refuse("layer_types", types, f"{words}, {layers} in all")
    if window is None and "sliding_attention" in types:
        raise refuse("layer_types", types, "full_attention for every layer, or sliding_window be given")
    return _fields(window, [kind == "full_attention" for kind in types])


def _fields(window: int | None, is_global: list[bool]) -> dict[str, Any]:
    """The fields from whether each layer is global: a period where they have one, else their numbers."""
    if all(is_global):
        return {"window": None, "global_period": None}
    if not any(is_global):
        return {"window": window, "global_period": None}
    period, layers = is_global.index(True) + 1, len(is_global)
    if is_global == [i % period == 0 for i in range(1, layers + 1)]:
        return {"window": window, "global_period": period}
    numbers = tuple(i for i, whole in enumerate(is_global) if whole)
    return {"window": window, "global_period": None, "global_at": numbers}
