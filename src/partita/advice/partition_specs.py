"""A plan as JAX PartitionSpecs: of every weight, and of each phase's tokens, residual and cache, as text.

The specs are those this project's engine uses, of one layer's arrays; shapes are padded as `Storage.padded`
says. Imports no JAX.
"""

from __future__ import annotations

from typing import Any

from partita.planner.pair import Pair
from partita.sharding.layout import Layout
from partita.sharding.spec import Sharding, parse
from partita.specs.model import Model
from partita.specs.parameters import parameter_table, scale_name


def partition_specs(pair: Pair) -> dict[str, Any]:
    """`mesh`: axis -> chips; `weights`: name -> {"sharding", "spec"}, scales of int8 matrices too; and a
    phase's activations likewise under `prefill` and `decode`."""
    setting, layout = pair.decode.setting, pair.decode.layout
    weights = {name: parse(text) for name, text in layout.storage.weights(setting.model).items()}
    if setting.formats.weights == "int8":
        scaled = [row for row in parameter_table(setting.model).values() if row.quantisable]
        weights |= {scale_name(row.name): weights[row.name].only(row.channels) for row in scaled}
    return {
        "mesh": setting.mesh.size,
        "weights": {name: _entry(sharding) for name, sharding in weights.items()},
        "prefill": _activations(setting.model, pair.prefill.layout, cached=False),
        "decode": _activations(setting.model, layout, cached=True),
    }


def partition_spec(sharding: Sharding) -> str:
    """`PartitionSpec(None, ('y', 'z'), 'x')`."""
    parts = []
    for axes in sharding.axes:
        names = [repr(axis) for axis in axes]
        parts.append("None" if not names else names[0] if len(names) == 1 else f"({', '.join(names)})")
    while parts and parts[-1] == "None":
        parts.pop()
    return f"PartitionSpec({', '.join(parts)})"


def _activations(model: Model, layout: Layout, cached: bool) -> dict[str, dict[str, str]]:
    found = {
        "tokens": f"B_{layout.tokens_b} L",
        "residual": layout.residual,
        "queries": f"B_{layout.attn_b} L_{layout.queries(cached)} K_{layout.attn_k} G_{layout.attn_g} D",
    }
    if model.latent is None:
        found |= {"keys": layout.keys, "values": layout.cache}
    else:
        found["cache"] = layout.latent_cache
    return {name: _entry(parse(text)) for name, text in found.items()}


def _entry(sharding: Sharding) -> dict[str, str]:
    return {"sharding": str(sharding), "spec": partition_spec(sharding)}
