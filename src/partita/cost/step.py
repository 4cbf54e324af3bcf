"""One step of one phase, priced: runs the program through the cost interpreter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from partita.cost.ledger import Ledger, Number
from partita.cost.ops import CostOps, Sized
from partita.program import transformer
from partita.sharding.layout import Layout, ceil_to, product, union
from partita.sharding.spec import parse
from partita.specs.formats import BYTES, Formats
from partita.specs.model import Model


@dataclass(frozen=True)
class Step:
    """What one step costs a chip, and what the chip must hold for it."""

    ledger: Ledger
    batch: Number  # sequences, padded to what the layout splits
    queries: Number  # new tokens of each, padded
    context: Number  # cached tokens of each
    weight_bytes: Number  # held per chip, padding included
    kv_bytes: Number  # held per chip at this context
    activation_bytes: Number  # held per chip at the worst operation

    @property
    def memory_bytes(self) -> Number:
        return self.weight_bytes + self.kv_bytes + self.activation_bytes


def price_step(
    model: Model,
    layout: Layout,
    sizes: Mapping[str, Number],
    formats: Formats,
    *,
    batch: Number,
    queries: Number,
    context: Number | None = None,
    all_logits: bool = False,
    greedy: bool = True,
    free_permutes: bool = False,
) -> Step:
    """Prices a prefill step (`context` None: `queries` tokens attend to each other) or a decode step
    (each of `queries` new tokens attends to a cache of `context` tokens, its own included).

    `sizes` (chips per axis), `batch`, `queries` and `context` are ints or NumPy float arrays of candidates.
    A prefill unembeds the last token of each sequence unless `all_logits`. `free_permutes`: see `CostOps`.
    """
    ops = CostOps(sizes, formats, model.layers, free_permutes=free_permutes)
    padded = layout.storage.padded(model, sizes) | {"M": 1}
    batch = ceil_to(batch, product(sizes, layout.batch_axes))
    queries = ceil_to(queries, product(sizes, layout.query_axes if context is None else layout.new_axes))
    weights = sized_weights(ops, model, layout, padded)
    top = {name: weights.pop(name) for name in ("embed", "unembed", "final_norm") if name in weights}
    tokens = Sized(parse("B L"), {"B": batch, "L": queries}, "f32")
    cache = None
    if context is not None:
        context = ceil_to(context, product(sizes, layout.attn_s))
        cached = {**padded, "B": batch, "S": context, "M": 2}
        cache = Sized(parse(layout.cache), cached, formats.kv, kind="cache")
    lengths = Sized(parse("B"), {"B": batch}, "f32") if context is None and not all_logits else None
    logits, kv = transformer.forward(ops, model, layout, top, weights, tokens, tokens, lengths, cache)
    if greedy and not all_logits:
        transformer.greedy(ops, logits, model.vocabulary)
    return Step(
        ledger=ops.ledger,
        batch=batch,
        queries=queries,
        context=queries if context is None else context,
        weight_bytes=sum(w.stored_bytes for w in top.values())
        + model.layers * sum(w.stored_bytes for w in weights.values()),
        kv_bytes=model.layers * ops.bytes(kv),
        activation_bytes=ops.ledger.held_bytes + _residual_bytes(ops, layout, padded, batch, queries),
    )


def price_switch(
    model: Model,
    source: Layout,
    target: Layout,
    sizes: Mapping[str, Number],
    formats: Formats,
    *,
    batch: Number,
    tokens: Number,
) -> Ledger:
    """Prices moving a prompt's keys and values of all layers from one phase's sharding to another's."""
    ops = CostOps(sizes, formats, model.layers)
    padded = source.storage.padded(model, sizes)
    shards = product(sizes, union(source.batch_axes, target.batch_axes))
    tokens = ceil_to(tokens, product(sizes, union(source.attn_s, target.attn_s)))
    held = {**padded, "A": model.layers, "M": 2, "B": ceil_to(batch, shards), "S": tokens}
    transformer.switch(ops, Sized(parse(f"A {source.cache}"), held, formats.kv), target)
    return ops.ledger


def sized_weights(
    ops: CostOps, model: Model, layout: Layout, padded: Mapping[str, Number]
) -> dict[str, Sized]:
    """Every parameter as stored; one layer's for those of the layers. Norms are kept in float32."""
    matrices = {"kv": 2, "ffn_in": model.ffn_inputs}
    found = {}
    for name, sharding in layout.storage.weights(model).items():
        norm = name.endswith("norm")
        sizes = {**padded, "M": model.norm_vectors if norm else matrices.get(name, 1)}
        weight = Sized(parse(sharding), sizes, "f32" if norm else ops.formats.weights, kind="weight")
        elements = math.prod(sizes[d] for d in weight.sharding.dims)
        stored = elements // product(ops.sizes, "".join(weight.sharding.axes)) * BYTES[weight.format]
        found[name] = Sized(
            weight.sharding, sizes, weight.format, weight.format, kind="weight", stored_bytes=stored
        )
    return found


def _residual_bytes(
    ops: CostOps, layout: Layout, padded: Mapping[str, Number], batch: Number, queries: Number
) -> Number:
    sizes = {"B": batch, "L": queries, "E": padded["E"]}
    return ops.bytes(Sized(parse(layout.residual), sizes, ops.formats.activations))
