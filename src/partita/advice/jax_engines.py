"""A plan as MaxText's mesh options and as JAX PartitionSpecs; and `other_engines`, for every engine.

MaxText: each role of a mesh axis is one of its named kinds of parallelism, by the logical axis rules of its
`base.yml` and `inference.yml` (github.com/AI-Hypercomputer/maxtext, read at 0.2.3 and later): `tensor` splits
d_ff and heads, `fsdp` splits d_model for storage and tokens in use (the weights are gathered), `data`
replicates. `ici_` counts chips inside a slice, `dcn_` those between slices.

PartitionSpecs: those that this project's engine uses, as text, of every weight and of each phase's tokens,
residual and cache, for the arrays of one layer; shapes are padded as `Storage.padded` says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from partita.advice.gpu_engines import EngineFlags, command, serving, sglang, split, tensorrt_llm, vllm
from partita.cost.links import mesh_links
from partita.planner.pair import Pair
from partita.sharding.layout import Layout
from partita.sharding.spec import Sharding, parse
from partita.specs.model import Model
from partita.specs.parameters import parameter_table, scale_name

_KINDS = {"f": "tensor", "e-gathered": "fsdp", "replica": "data"}


def maxtext(pair: Pair) -> EngineFlags:
    """Options of `MaxText.decode` and the engine server."""
    cannot = list(_cannot(pair))
    source = "https://github.com/AI-Hypercomputer/maxtext (src/maxtext/configs)"
    if cannot:
        return EngineFlags("MaxText", source, {}, "", (), tuple(cannot))
    asked, setting = serving(pair), pair.decode.setting
    options = {
        **_parallelism(pair),
        "per_device_batch_size": f"{asked.batch / setting.cluster.chips:g}",
        "max_prefill_predict_length": str(asked.prompt),
        "max_target_length": str(asked.context),
        "weight_dtype": "float32" if asked.weights == "f32" else "bfloat16",
    }
    differs = []
    if asked.weights == "int8":
        options |= {"quantization": "int8", "checkpoint_is_quantized": "true"}
        differs.append("weights int8: MaxText's int8 quantises activations too")
    if asked.kv == "int8":
        options["quantize_kvcache"] = "true"
    text = " ".join(f"{name}={value}" for name, value in options.items())
    return EngineFlags("MaxText", source, options, command(text, {}), tuple(differs), ())


def _parallelism(pair: Pair) -> dict[str, str]:
    """Chips of each kind, those on network levels apart."""
    setting, roles = pair.decode.setting, pair.decode.layout.roles
    parts = mesh_links(setting.mesh, setting.stage_cluster).parts
    torus = [axis.kind == "torus" for axis in setting.cluster.fabric]
    levels = len(next(iter(parts.values())))
    # a torus is one level; networks come first, since levels go from the slowest
    networks = sum(axis.kind == "network" for axis in setting.cluster.fabric) if not all(torus) else 0
    found: dict[str, str] = {}
    for prefix, chosen in (("dcn", range(networks)), ("ici", range(networks, levels))):
        for kind in _KINDS.values():
            chips = math.prod(
                int(parts[axis][level])
                for axis, role in roles.weights
                if _KINDS.get(role) == kind
                for level in chosen
            )
            if chips > 1:
                found[f"{prefix}_{kind}_parallelism"] = str(chips)
    return found


def _cannot(pair: Pair) -> Iterator[str]:
    prefill, decode = pair.prefill.layout.roles, pair.decode.layout.roles
    if (prefill.weights, prefill.attends) != (decode.weights, decode.attends):
        yield f"a layout for each phase (prefill {prefill}, decode {decode}): MaxText has one for both"
    if pair.decode.setting.stages > 1:
        yield "pipeline stages: MaxText's are for training"
    found = split(pair.decode)
    if found.e > 1:
        yield (
            f"2D weight-stationary ({found.e} x {found.f}): its axis for d_model, tensor_transpose, was "
            "removed after release 0.2.3 (before that: ici_tensor_transpose_parallelism)"
        )
    if found.gathered_f > 1:
        yield f"weights gathered over d_ff {found.gathered_f} ways: fsdp stores them split on d_model"
    if found.batch > 1:
        yield "attention over batch with tensor-parallel weights: its cache is split over heads"
    if found.context > 1:
        yield "attention over context: its context_autoregressive axis keeps dense feed-forward weights whole"
    if found.whole > 1:
        yield f"attention split over nothing on {found.whole} chips: heads go where weights go"
    model = pair.decode.setting.model
    for name, size in (("heads", model.heads), ("KV heads", model.kv_heads), ("d_ff", model.d_ff)):
        if size % found.f:
            yield f"{size} {name} over {found.f} chips: JAX splits only what divides, MaxText does not pad"


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


def other_engines(pair: Pair) -> list[EngineFlags]:
    """The pair for vLLM, SGLang, TensorRT-LLM and MaxText, in this order."""
    return [vllm(pair), sglang(pair), tensorrt_llm(pair), maxtext(pair)]


def other_engines_json(pair: Pair) -> dict[str, Any]:
    """JSON: `jax` (PartitionSpecs, which express every plan) and `engines`."""
    return {"jax": partition_specs(pair), "engines": [flags.as_json() for flags in other_engines(pair)]}
