"""Which layers attend to a sliding window only. Knows nothing about the rest of a model."""

from __future__ import annotations

from typing import Any

from partita.specs.hugging_face.family import Config, refuse

FIELDS = (
    "sliding_window",
    "layer_types",
    "use_sliding_window",
    "max_window_layers",
    "sliding_window_pattern",
)


def windows(config: Config, period: int | None = None) -> dict[str, Any]:
    """The fields of `Model` on windows. period: every how many layers one is global, in the family's form."""
    window = config.get("sliding_window")
    types = config.get("layer_types")
    if types is not None:
        window, period = _from_types(types, config["num_hidden_layers"], window)
    return {"window": window, "global_period": period if window else None}


def windows_above(config: Config) -> dict[str, Any]:
    """As Qwen has it: with `use_sliding_window`, the layers from `max_window_layers` on are local."""
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
