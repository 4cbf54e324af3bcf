"""Prices one step of one phase: runs the program through the cost interpreter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from partita.cost.cache import LayerStack, in_cache
from partita.cost.ledger import Ledger, Sized
from partita.cost.number import Number, smaller
from partita.cost.ops import CostOps
from partita.cost.sampling import price_draw
from partita.cost.schedule import StageLayers, whole
from partita.program import transformer
from partita.program.ops import Pass
from partita.program.options import RunOptions
from partita.program.sampling import Kind, logits_of_slots
from partita.sharding.layout import Layout, Storage, plan_storage, resolve
from partita.sharding.mesh import Mesh
from partita.sharding.padding import ceil_to, product, union
from partita.sharding.roles import parse_roles
from partita.sharding.spec import Sharding, parse
from partita.specs.formats import BYTES, Formats
from partita.specs.model import Model
from partita.specs.parameters import parameter_table


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


@dataclass(frozen=True)
class StepShape:
    """The sequences of a step and the tokens of each: ints, or NumPy float arrays of candidates."""

    batch: Number
    queries: Number
    """New tokens of each sequence."""
    context: Number | None = None
    """Tokens of each in the cache, the new ones included; None where there is no cache, in a prefill: then
    the new tokens attend to each other."""


@dataclass(frozen=True)
class StepOptions:
    """What a step gives beside the residual, and how it is run."""

    sampler: Kind | None = "greedy"
    """How the next token of each sequence is drawn; None: not at all."""
    all_logits: bool = False
    """Every token is unembedded, and none drawn; by default the last one of each sequence is."""
    verifies: bool = False
    """Every token is unembedded, and one drawn after each: the new tokens are drafts but for the first."""
    free_permutes: bool = False
    """As `CostOps` has it."""
    run_options: RunOptions = field(default_factory=RunOptions)


def price_step(
    model: Model,
    layout: Layout,
    sizes: Mapping[str, Number],
    formats: Formats,
    shape: StepShape,
    options: StepOptions = StepOptions(),
    part: StageLayers | None = None,
) -> Step:
    """Prices a step on a mesh whose axes have `sizes` chips, ints or NumPy float arrays of candidates.

    `part`: the layers and ends of the model that these chips hold, by default all.
    """
    part = part or whole(model)
    ops = CostOps(
        sizes,
        formats,
        LayerStack(part.layers, part.local_layers, model.window, layout.storage.s_axes),
        free_permutes=options.free_permutes,
        run_options=options.run_options,
    )
    backend = ops.run_options.backend
    padded = {**layout.storage.padded(model, sizes), "M": 1}
    batch, context = ceil_to(shape.batch, product(sizes, layout.batch_axes)), shape.context
    ops.ledger.sequences = batch / product(sizes, layout.attn_b)
    query_axes = layout.query_axes if context is None else layout.new_axes
    queries = ceil_to(shape.queries, product(sizes, query_axes))
    weights = sized_weights(ops, model, layout.storage, padded)
    top = {name: weights.pop(name) for name, row in parameter_table(model).items() if not row.in_block}
    tokens = Sized(parse("B L"), {"B": batch, "L": queries}, "f32")
    cache = None
    if context is not None:
        context = ceil_to(context + (queries - shape.queries), product(sizes, layout.attn_s))
        held = {**padded, "B": batch, "S": context}
        kept = [in_cache(parse(text), held, formats.kv, "cache") for text in _caches(model, layout)]
        cache = (kept[0], kept[1]) if model.latent is None else kept[0]
    residual = Sized(
        parse(layout.residual), {"B": batch, "L": queries, "E": padded["E"]}, formats.activations
    )
    lengths = None if cache is None else Sized(parse("B"), {"B": batch}, "f32")
    run = Pass(ops, model, layout, tokens, lengths)
    x = transformer.embed(run, top, tokens) if part.embeds else residual
    x, _ = transformer.blocks(run, weights, x, cache)
    if part.unembeds:
        every = options.all_logits or options.verifies
        logits = transformer.head(run, top, x, None if every else Sized(parse("B"), {"B": batch}, "f32"))
        if options.sampler and not options.all_logits:
            drafts = tokens if options.verifies else None
            price_draw(ops, logits, model.vocabulary, options.sampler, drafts)
        if backend.results_apart:
            ops.ledger.held_bytes = ops.ledger.held_bytes + ops.local.bytes(logits)
    # beside the residual tokens and positions, which every chip has whole
    held = ops.ledger.held_bytes + backend.residuals * ops.local.bytes(residual) + 2 * ops.local.bytes(tokens)
    held = backend.with_gaps(held)
    if backend.widens and formats.activations == "bf16":
        wide = formats.model_copy(update={"activations": "f32", "reduce": "f32"})
        held = price_step(model, layout, sizes, wide, shape, options, part).activation_bytes
    elif backend.widens and formats.kv == "bf16":
        held = held + 2 * ops.layer_cache_bytes
    return Step(
        ledger=ops.ledger,
        batch=batch,
        queries=queries,
        context=queries if context is None else context,
        weight_bytes=sum(top[name].stored_bytes for name in _ends(model, part))
        + part.layers * sum(w.stored_bytes for w in weights.values()),
        kv_bytes=ops.cache_bytes,
        activation_bytes=held,
    )


def needed_flops(model: Model, formats: Formats, shape: StepShape, part: StageLayers | None = None) -> int:
    """FLOPs that a model needs for a step, whatever the layout: its matrices, the unembedding of the tokens
    that are unembedded, and attention to the positions that its mask and windows leave.

    They are those of the program on one chip, which pads nothing and computes nothing twice.
    """
    roles = parse_roles("ws1d", "heads", "x")
    storage, one = plan_storage(model, Mesh("x", (1,)), roles, roles), Mesh("x", (1,))
    layout = resolve(roles, storage, one, int(shape.batch), int(shape.queries))
    step = price_step(model, layout, one.size, formats, shape, part=part)
    return round(float(step.ledger.total("needed_flops")))


def price_cache_reshard(
    model: Model,
    source: Layout,
    target: Layout,
    sizes: Mapping[str, Number],
    formats: Formats,
    prompts: StepShape,
    part: StageLayers | None = None,
) -> Ledger:
    """Prices moving the keys and values that a prefill of `prompts` has cached from one phase's sharding to
    another's.

    A local layer moves its window alone, apart from the rest. `part`: whose layers, by default all.
    """
    part = part or whole(model)
    ops = CostOps(sizes, formats, LayerStack(part.layers))
    padded = source.storage.padded(model, sizes)
    shards = product(sizes, union(source.batch_axes, target.batch_axes))
    kinds = [(part.global_layers, prompts.queries, union(source.attn_s, target.attn_s))]
    if model.window is not None:
        kinds.append((part.local_layers, smaller(prompts.queries, model.window), source.storage.s_axes))
    for layers, positions, over in kinds:
        if layers:
            positions = ceil_to(positions, product(sizes, over))
            held = {**padded, "B": ceil_to(prompts.batch, shards), "S": positions}
            with ops.repeated(layers):
                for before, after in zip(_caches(model, source), _caches(model, target), strict=True):
                    transformer.reshard_cache(ops, in_cache(parse(before), held, formats.kv), after)
    return ops.ledger


def price_first_draw(
    model: Model,
    source: Layout,
    target: Layout,
    sizes: Mapping[str, Number],
    formats: Formats,
    *,
    batch: Number,
    slots: Number | None = None,
    kind: Kind = "greedy",
) -> Ledger:
    """Prices the first token of every one of `slots` of decode's layout, as a rule one for each of a `batch`
    of prompts, from the logits that a prefill step in `source` gave."""
    ops = CostOps(sizes, formats, LayerStack(0))
    vocabulary = target.storage.padded(model, sizes)["V"]
    logits = Sized(
        parse(transformer.logits_sharding(source)), {"B": batch, "L": 1, "V": vocabulary}, "f32", "f32"
    )
    rows = Sized(parse("B"), {"B": batch if slots is None else slots}, "f32")
    own = logits_of_slots(ops, logits, rows, transformer.logits_sharding(target))
    price_draw(ops, own, model.vocabulary, kind)
    return ops.ledger


def _caches(model: Model, layout: Layout) -> tuple[str, ...]:
    """Shardings of what a layer caches: keys and values, or rows of both."""
    return (layout.keys, layout.cache) if model.latent is None else (layout.latent_cache,)


def weight_bytes(
    model: Model, storage: Storage, sizes: Mapping[str, Number], formats: Formats
) -> dict[str, Number]:
    """Bytes of each parameter as stored on a chip, scales and padding included; of one layer, for those that
    every layer has."""
    padded = {**storage.padded(model, sizes), "M": 1}
    found = sized_weights(CostOps(sizes, formats, LayerStack(0)), model, storage, padded)
    return {name: each.stored_bytes for name, each in found.items()}


def sized_weights(
    ops: CostOps, model: Model, storage: Storage, padded: Mapping[str, Number]
) -> dict[str, Sized]:
    """Every parameter as stored, those of the layers for one layer. An int8 matrix holds its scale."""
    rows, shardings = parameter_table(model), storage.weights(model)
    return {
        name: _stored(
            ops,
            parse(shardings[name]),
            {**padded, **row.own_sizes},
            row.number_format(ops.formats),
            row.channels,
        )
        for name, row in rows.items()
    }


def _stored(
    ops: CostOps, sharding: Sharding, sizes: Mapping[str, Number], format: str, channels: str
) -> Sized:
    """A parameter, with the scale of its output channels where it is in int8."""
    elements = math.prod(sizes[d] for d in sharding.dims)
    stored = elements // product(ops.local.sizes, "".join(sharding.axes)) * BYTES[format]
    scale = None
    if format == "int8" and channels:
        scale = _stored(ops, sharding.only(channels), sizes, "f32", "")
        stored = stored + scale.stored_bytes
    return Sized(sharding, sizes, format, format, kind="weight", stored_bytes=stored, scale=scale)


def _ends(model: Model, part: StageLayers) -> set[str]:
    """Parameters outside the layers that a part needs; a tied embedding is kept at both ends."""
    rows = parameter_table(model).values()
    found = {row.name for row in rows if row.part == "embedding"} if part.embeds else set()
    if part.unembeds:
        found |= {row.name for row in rows if row.part == "unembedding"}
        found |= {"embed"} if model.tied_embedding else set()
    return found
