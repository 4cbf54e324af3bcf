"""The Transformer, once: the text that one interpreter prices and the other runs.

Every line holds for every layout; which collectives a `to` becomes depends only on the layout's axes
(Pope et al. 2022, sections 3.2 to 3.4). In the comments e, f are the axes kept on E and on F/heads, t those
that split tokens instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from partita.program import latent
from partita.program.ops import Ops, T
from partita.program.pieces import moments, normalise, scale, softmax
from partita.sharding.layout import Layout
from partita.specs.model import Model


def forward(
    ops: Ops[T],
    model: Model,
    layout: Layout,
    weights: Mapping[str, T],
    layers: Mapping[str, T],
    tokens: T,
    positions: T,
    lengths: T | None,
    cache: T | None,
) -> tuple[T, T]:
    """Logits and the new cache for tokens [B L] at positions [B L].

    `weights` are those outside the blocks; `layers` those of all layers, stacked. With `lengths` [B]
    only the last token of each sequence is unembedded: logits [B 1 V]; without, all: [B L V]. Without a
    `cache` the tokens attend to each other only, and the new cache is theirs.
    """
    x = embed(ops, layout, weights, tokens, positions)
    x, cache = blocks(ops, model, layout, layers, x, positions, cache)
    return head(ops, model, layout, weights, x, lengths), cache


def blocks(
    ops: Ops[T],
    model: Model,
    layout: Layout,
    layers: Mapping[str, T],
    x: T,
    positions: T,
    cache: T | None,
) -> tuple[T, T]:
    """All layers on the residual [B_t L_t E_ef], and their new cache."""

    def body(x: T, w: Mapping[str, T], cache: T | None) -> tuple[T, T]:
        return block(ops, model, layout, w, x, positions, cache)

    with ops.scope("layer"):
        return ops.layers(body, x, layers, cache)


def head(ops: Ops[T], model: Model, layout: Layout, weights: Mapping[str, T], x: T, lengths: T | None) -> T:
    """Logits of the residual: of the last token of each sequence where `lengths` are given, else of all."""
    if lengths is not None:
        with ops.scope("last"):
            x = ops.last(x, ops.to(lengths, f"B_{layout.tokens_b}"))
            x = ops.to(x, f"B_{layout.tokens_b} L E_{layout.e}{layout.fg}{layout.fk}")
    with ops.scope("final_norm"):
        x = normalise(ops, model, x, weights.get("final_norm"))
    return unembed(ops, layout, weights, x)


def embed(ops: Ops[T], layout: Layout, weights: Mapping[str, T], tokens: T, positions: T) -> T:
    """Tokens [B L] -> residual [B_t L E_ef]; the table stays, every chip looks all tokens up in its part.

    Where positions are learned every chip has their whole table, and looks up its own tokens' rows.
    """
    with ops.scope("embed"):
        x = ops.lookup(weights["embed"], ops.to(tokens, f"B_{_replicas(layout, layout.tokens_b)} L"))
        x = ops.to(x, layout.residual)
        if "positions" in weights:
            own = ops.to(positions, f"B_{layout.tokens_b} L_{layout.tokens_l}")
            x = ops.add(x, ops.to(ops.lookup(weights["positions"], own), layout.residual))
        return x


def unembed(ops: Ops[T], layout: Layout, weights: Mapping[str, T], x: T) -> T:
    """[B_t L E_ef] -> float32 logits [B L V_fe], on the table as it is stored."""
    stored = layout.storage
    batch = _replicas(layout, layout.tokens_b)
    with ops.scope("unembed"):
        x = ops.to(x, f"B_{batch} L E_{stored.e}")
        table = weights["unembed"] if "unembed" in weights else weights["embed"]
        logits = ops.einsum("BLE,VE->BLV", x, table, precise=True)  # partial over e
        return ops.to(logits, logits_sharding(layout))


def logits_sharding(layout: Layout) -> str:
    """Of the logits [B L V]: the vocabulary over every axis that the table is stored over."""
    stored = layout.storage
    return f"B_{_replicas(layout, layout.tokens_b)} L V_{stored.f}{stored.e}"


def greedy(ops: Ops[T], logits: T, vocabulary: int) -> T:
    """The most likely token [B] of logits [B 1 V_fe]; only each shard's best travels."""
    with ops.scope("greedy"):
        best = ops.best(logits, vocabulary)
        return ops.pick(ops.to(best, "B V M"))


def block(
    ops: Ops[T],
    model: Model,
    layout: Layout,
    w: Mapping[str, T],
    x: T,
    positions: T,
    cache: T | None,
) -> tuple[T, T]:
    """One pre-norm block on the residual [B_t L_t E_ef], parallel or serial (section 3.4)."""
    y, y_kv, y_e, y_ffn = first_norm(ops, model, layout, w, x)
    with ops.scope("attention"):
        if model.latent is None:
            z, cache = attention(ops, model, layout, w, y_kv, y_e, positions, cache)
        elif isinstance(ops, latent.LatentOps):
            z, cache = latent.attention(ops, model, layout, w, y, y_e, positions, cache)
        else:
            raise ValueError(f"{type(ops).__name__} does not run latent attention")
    if model.block == "parallel":  # one reduction over f for both halves
        with ops.scope("ffn"):
            z = ops.add(z, ffn(ops, model, layout, w, y_ffn))
    else:
        with ops.scope("attention"):
            z = ops.to(z, layout.residual)
            x = ops.add(x, normalise(ops, model, z, w.get("post_norm")) if model.post_norms else z)
        with ops.scope("ffn_norm"):
            y = normalise(ops, model, x, w.get("ffn_norm"))
        _, y = gather(ops, layout, y)
        with ops.scope("ffn"):
            z = ffn(ops, model, layout, w, y)
    with ops.scope("ffn"):
        z = ops.to(z, layout.residual)
        return ops.add(x, normalise(ops, model, z, w.get("ffn_post_norm")) if model.post_norms else z), cache


def first_norm(ops: Ops[T], model: Model, layout: Layout, w: Mapping[str, T], x: T) -> tuple[T, T, T, T]:
    """The residual normed, for attention as [B_t L_t E_ef] and gathered twice (see `gather`), and for the
    feed-forward of a parallel block.

    Two separate norms of one residual share its moments, and what is gathered is the residual itself. Latent
    attention whose queries are compressed takes nothing gathered.
    """
    with ops.scope("norm"):
        sums = moments(ops, model, x)
        y = scale(ops, model, x, sums, w.get("norm"))
    if model.separate_norms:
        x_kv, x_e = gather(ops, layout, x)
        with ops.scope("norm"):
            y_kv, y_e = (scale(ops, model, part, sums, w.get("norm")) for part in (x_kv, x_e))
            return y, y_kv, y_e, scale(ops, model, x_e, sums, w.get("ffn_norm"))
    if model.latent is not None and model.latent.query_rank is not None and model.block == "serial":
        return y, y, y, y
    y_kv, y_e = gather(ops, layout, y)
    return y, y_kv, y_e, y_e


def gather(ops: Ops[T], layout: Layout, y: T) -> tuple[T, T]:
    """[B_t L_t E_ef] -> E split over e and the axes of f that split no KV head, and over e alone."""
    tokens = f"B_{layout.tokens_b} L_{layout.tokens_l}"
    with ops.scope("gather"):
        y_kv = ops.to(y, f"{tokens} E_{layout.e}{layout.fg}")
        return y_kv, ops.to(y_kv, f"{tokens} E_{layout.e}")


def ffn(ops: Ops[T], model: Model, layout: Layout, w: Mapping[str, T], y: T) -> T:
    """Feed-forward of [B_t L_t E_e], a partial sum over f: every layout of section 3.2."""
    e, f, tokens = layout.e, layout.f, f"B_{layout.tokens_b} L_{layout.tokens_l}"
    with ops.scope("in"):
        h = ops.einsum("BLE,EMF->BLMF", y, ops.to(w["ffn_in"], f"E_{e} M F_{f}"))  # partial over e
        h = ops.gate(ops.to(h, f"{tokens} M F_{f}{e}"), model.feed_forward)
    with ops.scope("out"):
        h = ops.to(h, f"{tokens} F_{f}")
        return ops.einsum("BLF,FE->BLE", h, ops.to(w["ffn_out"], f"F_{f} E_{e}"))


def attention(
    ops: Ops[T],
    model: Model,
    layout: Layout,
    w: Mapping[str, T],
    y_kv: T,
    y: T,
    positions: T,
    cache: T | None,
) -> tuple[T, T]:
    """Attention of [B_t L_t E], a partial sum over f, and the layer's new cache (section 3.3).

    Keys and values are projected from an E still split over the axes that split no KV head: with one KV
    head (multi-query) every chip multiplies its own part and no weight of it is replicated.

    Over an axis of context a prefill splits its queries, and keeps of its keys and values those dealt to
    the chip; with a cache, every chip attends for all queries to the positions it holds, and the parts are
    put together.
    """
    e, fg, fk = layout.e, layout.fg, layout.fk
    queries = layout.queries(cached=cache is not None)
    with ops.scope("q"):
        q = ops.einsum("BLE,EKGD->BLKGD", y, ops.to(w["q"], f"E_{e} K_{fk} G_{fg} D"))  # partial over e
        q = ops.to(q, f"B_{layout.attn_b} L_{queries} K_{layout.attn_k} G_{layout.attn_g} D")
    with ops.scope("kv"):
        kv = ops.einsum("BLE,EMKD->MBLKD", y_kv, ops.to(w["kv"], f"E_{e}{fg} M K_{fk} D"))
        kv = ops.to(kv, f"M B_{layout.attn_b} L K_{layout.attn_k} D")
    kv_positions = ops.to(positions, f"B_{layout.attn_b} L")
    q_positions = ops.to(positions, f"B_{layout.attn_b} L_{queries}")
    if model.positions == "rotary":
        q = ops.rotate(q, q_positions, model.rotary_base)
        kv = ops.rotate_keys(kv, kv_positions, model.rotary_base)
    with ops.scope("attend"):
        cache = ops.as_cache(kv) if cache is None else ops.write(cache, kv, kv_positions)
        keys, values = ops.take(cache, "M", 0), ops.take(cache, "M", 1)
        scores = ops.einsum("BLKGD,BSKD->BLKGS", q, keys, causal=True, precise=True)
        shares = softmax(ops, scores, q_positions, model.head_dim**-0.5)
        mixed = ops.einsum("BLKGS,BSKD->BLKGD", shares, values, causal=True)  # partial over S
        cache = ops.to(cache, layout.cache)
    with ops.scope("o"):
        mixed = ops.to(mixed, f"B_{layout.tokens_b} L_{layout.tokens_l} K_{fk} G_{fg} D")
        return ops.einsum("BLKGD,KGDE->BLE", mixed, ops.to(w["o"], f"K_{fk} G_{fg} D E_{e}")), cache


def switch(ops: Ops[T], cache: T, layout: Layout) -> T:
    """A cache of all layers [A M B S K D] or [A B S R] in another phase's sharding; its batch fits both."""
    sharding = layout.latent_cache if "R" in cache.sharding.dims else layout.cache
    with ops.scope("switch"):
        return ops.to(cache, f"A {sharding}")


def _replicas(layout: Layout, axes: str) -> str:
    """Those of `axes` that the weights are not stored over: their tokens never have to meet."""
    return "".join(a for a in axes if a not in layout.storage.e + layout.storage.f)
