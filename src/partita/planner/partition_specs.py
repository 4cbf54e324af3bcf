"""A plan as JAX PartitionSpecs: of every weight, and of each phase's tokens, residual and cache, as text.

The specs are those this project's engine uses; shapes are padded as `Storage.padded` says. Imports no JAX.
"""

from __future__ import annotations

from typing import Any

from partita.planner.pair import Pair
from partita.program.parameters import parameter_shapes
from partita.sharding.layout import Layout
from partita.sharding.spec import Sharding, parse
from partita.specs.model import Model


def partition_specs(pair: Pair) -> dict[str, Any]:
    """`mesh`: axis -> chips; `weights`: name -> {"sharding", "spec"}, layers stacked in front; and a phase's
    activations likewise under `prefill` and `decode`."""
    setting, layout = pair.decode.setting, pair.decode.layout
    alone = {*parameter_shapes(setting.model), "positions"}
    weights = layout.storage.weights(setting.model)
    return {
        "mesh": setting.mesh.size,
        "weights": {name: _entry(text, stacked=name not in alone) for name, text in weights.items()},
        "prefill": _activations(setting.model, pair.prefill.layout),
        "decode": _activations(setting.model, layout),
    }


def partition_spec(sharding: Sharding, *, stacked: bool = False) -> str:
    """`PartitionSpec(None, ('y', 'z'), 'x')`; `stacked` puts an unsplit dim of all layers in front."""
    parts = ["None"] * stacked
    for axes in sharding.axes:
        names = [repr(axis) for axis in axes]
        parts.append("None" if not names else names[0] if len(names) == 1 else f"({', '.join(names)})")
    while parts and parts[-1] == "None":
        parts.pop()
    return f"PartitionSpec({', '.join(parts)})"


def _activations(model: Model, layout: Layout) -> dict[str, dict[str, str]]:
    cache = layout.cache if model.latent is None else layout.latent_cache
    found = {
        "tokens": f"B_{layout.tokens_b} L",
        "residual": layout.residual,
        "queries": f"B_{layout.attn_b} L_{layout.attn_l} K_{layout.attn_k} G_{layout.attn_g} D",
    }
    return {name: _entry(text) for name, text in found.items()} | {"cache": _entry(cache, stacked=True)}


def _entry(text: str, stacked: bool = False) -> dict[str, str]:
    sharding = parse(text)
    return {"sharding": str(sharding), "spec": partition_spec(sharding, stacked=stacked)}
