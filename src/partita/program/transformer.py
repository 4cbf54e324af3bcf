"""The Transformer, once: the text that one interpreter prices and the other runs.

Every line holds for every layout; which collectives a `to` becomes depends only on the layout's axes
(Pope et al. 2022, sections 3.2 to 3.4). In the comments e, f are the axes kept on E and on F/heads, t those
that split tokens instead. Attention is in `attention.py`; a family of models is a choice of `Model`'s fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partita.program import latent
from partita.program.attention import attend, attention_products
from partita.program.norms import moments, normalise, scale
from partita.program.ops import Ops, Pass, Product, T
from partita.sharding.layout import Layout
from partita.specs.model import Model


def forward(
    run: Pass[T], weights: Mapping[str, T], layers: Any, tokens: T, counts: T | None, cache: Any
) -> tuple[T, Any]:
    """Logits and the new cache for tokens [B L].

    `weights` are those outside the blocks; `layers` those of all layers. With `counts` [B], new tokens of
    each sequence that are not padding, only the last of them is unembedded: logits [B 1 V]; without, all:
    [B L V]. Without a `cache` the tokens attend to each other only, and the new cache is theirs.
    """
    x = embed(run, weights, tokens)
    x, cache = blocks(run, layers, x, cache)
    return head(run, weights, x, counts), cache


def blocks(run: Pass[T], layers: Any, x: T, cache: Any) -> tuple[T, Any]:
    """All layers on the residual [B_t L_t E_ef], and their new cache."""

    def body(x: T, w: Mapping[str, T], cache: Any, local: bool) -> tuple[T, Any]:
        return block(run, w, x, cache, local)

    with run.ops.scope("layer"):
        return run.ops.layers(body, x, layers, cache)


def head(run: Pass[T], weights: Mapping[str, T], x: T, counts: T | None) -> T:
    """Logits of the residual: of the last token of each sequence where `counts` are given, else of all."""
    ops, layout = run.ops, run.layout
    if counts is not None:
        with ops.scope("last"):
            x = ops.last(x, ops.to(counts, f"B_{layout.tokens_b}"))
            x = ops.to(x, f"B_{layout.tokens_b} L E_{layout.e}{layout.fg}{layout.fk}")
    with ops.scope("final_norm"):
        x = normalise(ops, run.model, x, weights.get("final_norm"))
    return unembed(run, weights, x)


def embed(run: Pass[T], weights: Mapping[str, T], tokens: T) -> T:
    """Tokens [B L] -> residual [B_t L E_ef]; the table stays, every chip looks all tokens up in its part.

    Where positions are learned every chip has their whole table, and looks up its own tokens' rows.
    """
    ops, layout = run.ops, run.layout
    with ops.scope("embed"):
        x = ops.lookup(weights["embed"], ops.to(tokens, f"B_{_replicas(layout, layout.tokens_b)} L"))
        x = ops.to(x, layout.residual)
        if run.model.embedding_scale is not None:
            x = ops.scaled(x, run.model.embedding_scale)
        if "positions" in weights:
            own = ops.to(run.positions, f"B_{layout.tokens_b} L_{layout.tokens_l}")
            x = ops.add(x, ops.to(ops.lookup(weights["positions"], own), layout.residual))
        return x


def unembed(run: Pass[T], weights: Mapping[str, T], x: T) -> T:
    """[B_t L E_ef] -> float32 logits [B L V_fe], on the table as it is stored."""
    ops, model, layout = run.ops, run.model, run.layout
    batch = _replicas(layout, layout.tokens_b)
    with ops.scope("unembed"):
        x = ops.to(x, f"B_{batch} L E_{layout.storage.e}")
        table = weights["unembed"] if "unembed" in weights else weights["embed"]
        # partial over e
        logits = ops.einsum("BLE,VE->BLV", x, table, to=logits_sharding(layout), precise=True)
        if model.logit_scale is not None:
            logits = ops.scaled(logits, model.logit_scale)
        return logits if model.logit_softcap is None else ops.softcap(logits, model.logit_softcap)


def logits_sharding(layout: Layout) -> str:
    """How the logits [B L V] are split: the vocabulary over every axis that the table is stored over."""
    stored = layout.storage
    return f"B_{_replicas(layout, layout.tokens_b)} L V_{stored.f}{stored.e}"


def greedy(ops: Ops[T], logits: T, vocabulary: int) -> T:
    """The most likely token [B] of logits [B 1 V_fe]; only each shard's best travels."""
    with ops.scope("greedy"):
        best = ops.best(logits, vocabulary)
        return ops.pick(ops.to(best, "B V M"))


def block(run: Pass[T], w: Mapping[str, T], x: T, cache: Any, local: bool) -> tuple[T, Any]:
    """One pre-norm block on the residual [B_t L_t E_ef], parallel or serial (section 3.4)."""
    ops, model, layout = run.ops, run.model, run.layout
    parallel = model.block == "parallel"
    if model.latent is not None:
        z, h, cache = _latent_half(run, w, x, cache)
    else:
        inputs = ffn_inputs(ops, layout, w) if parallel else []
        q, kv, h = first_half(run, w, x, inputs, cached=cache is not None)
        with ops.scope("attention"):
            to = None if parallel and ops.run_options.shared_reduction else layout.residual
            z, cache = attend(run, w, (q, kv), cache, local, to)
    if parallel:
        shared = ops.run_options.shared_reduction  # over f, for both halves
        if not shared:
            with ops.scope("attention"):
                z = ops.to(z, layout.residual)
        with ops.scope("ffn"):
            assert h is not None
            out = ffn_output(ops, model, layout, w, h, layout.residual, plus=z if shared else None)
            z = out if shared else ops.add(z, out)
    else:
        with ops.scope("attention"):
            z = ops.to(z, layout.residual)
            x = join(ops, model, x, z, w.get("o_bias"), w.get("post_norm"))
        with ops.scope("ffn_norm"):
            y = normalise(ops, model, x, w.get("ffn_norm"))
        h = gathered_product(ops, layout, y, ffn_inputs(ops, layout, w))
        with ops.scope("ffn"):
            z = ffn_output(ops, model, layout, w, h, layout.residual)
    with ops.scope("ffn"):
        bias = w.get("ffn_out_bias")
        if parallel and bias is not None and "o_bias" in w:
            bias = ops.add(bias, w["o_bias"])
        elif parallel and bias is None:
            bias = w.get("o_bias")
        return join(ops, model, x, z, bias, w.get("ffn_post_norm")), cache


def join(ops: Ops[T], model: Model, x: T, z: T, bias: T | None, norm: T | None) -> T:
    """The residual [B_t L_t E_ef] with one half of a block added to it."""
    if bias is not None:
        z = ops.shift(z, ops.to(bias, f"E_{z.sharding['E']}"))
    if model.post_norms:
        z = normalise(ops, model, z, norm)
    if model.residual_scale is not None:
        z = ops.scaled(z, model.residual_scale)
    return ops.add(x, z)


def first_half(
    run: Pass[T], w: Mapping[str, T], x: T, inputs: list[Product[T]], cached: bool
) -> tuple[T, T, T | None]:
    """Queries, keys and values, and what the first matrices of a parallel block's feed-forward give, from the
    residual normed.

    Keys and values are projected from an E still split over the axes that split no KV head: with one KV head
    (multi-query) every chip multiplies its own part and no weight of it is replicated.
    """
    ops, model, layout = run.ops, run.model, run.layout
    with ops.scope("norm"):
        sums = moments(ops, model, x)
    kv, q = attention_products(ops, layout, w, cached)
    kv_sharding, sharding = (f"{_tokens(layout)} E_{layout.e}{axes}" for axes in (layout.fg, ""))
    if model.separate_norms:  # of one residual: they share its moments, and it is what is gathered
        with ops.scope("gather"):
            x_kv = ops.to(x, kv_sharding)
            x = ops.to(x_kv, sharding)
        with ops.scope("norm"):
            y_kv, y_q = (scale(ops, model, part, sums, w.get("norm")) for part in (x_kv, x))
            y = scale(ops, model, x, sums, w.get("ffn_norm"))
        _, found = ops.project(y_kv, kv_sharding, [kv])
        _, asked = ops.project(y_q, sharding, [q])
        _, hidden = ops.project(y, sharding, inputs)
        return asked[0], found[0], hidden[0] if hidden else None
    with ops.scope("norm"):
        y = scale(ops, model, x, sums, w.get("norm"))
    if layout.fg:
        y, (found, *_) = ops.project(y, kv_sharding, [kv])
        _, (asked, *hidden) = ops.project(y, sharding, [q, *inputs])
    else:
        _, (found, asked, *hidden) = ops.project(y, sharding, [kv, q, *inputs])
    return asked, found, hidden[0] if hidden else None


def _latent_half(run: Pass[T], w: Mapping[str, T], x: T, cache: Any) -> tuple[T, T | None, Any]:
    """What `first_half` and attention do, for latent attention; where queries are compressed, it takes
    nothing gathered."""
    ops, model, layout = latent.latent_ops(run.ops), run.model, run.layout
    assert model.latent is not None
    parallel = model.block == "parallel"
    with ops.scope("norm"):
        y = normalise(ops, model, x, w.get("norm"))
    y_e, hidden = y, []
    if parallel or model.latent.query_rank is None:
        if layout.fg:
            with ops.scope("gather"):
                y_e = ops.to(y, f"{_tokens(layout)} E_{layout.e}{layout.fg}")
        inputs = ffn_inputs(ops, layout, w) if parallel else []
        y_e, hidden = ops.project(y_e, f"{_tokens(layout)} E_{layout.e}", inputs)
    with ops.scope("attention"):
        z, cache = latent.attention(run, w, y, y_e, cache)
    return z, hidden[0] if hidden else None, cache


def ffn_inputs(ops: Ops[T], layout: Layout, w: Mapping[str, T]) -> list[Product[T]]:
    """The feed-forward's first matrices [E_e M F_f]; the product is scattered over e into F where they are
    split so: every layout of section 3.2."""
    with ops.scope("ffn/in"):
        weight = ops.to(w["ffn_in"], f"E_{layout.e} M F_{layout.f}")
        bias = ops.to(w["ffn_in_bias"], f"M F_{layout.f}") if "ffn_in_bias" in w else None
    to = f"{_tokens(layout)} M F_{layout.f}{layout.e if ops.run_options.scatter_hidden else ''}"
    return [Product("ffn/in", "BLE,EMF->BLMF", weight, to, bias)]  # partial over e


def gathered_product(ops: Ops[T], layout: Layout, y: T, inputs: list[Product[T]]) -> T:
    """The product of the one of `inputs` with [B_t L_t E_ef], gathered over f."""
    if layout.fg:
        with ops.scope("gather"):
            y = ops.to(y, f"{_tokens(layout)} E_{layout.e}{layout.fg}")
    _, (h, *_) = ops.project(y, f"{_tokens(layout)} E_{layout.e}", inputs)
    return h


def ffn_output(
    ops: Ops[T],
    model: Model,
    layout: Layout,
    w: Mapping[str, T],
    h: T,
    to: str,
    plus: T | None = None,
) -> T:
    """[B_t L_t M F_fe], gated and gathered over e, on the feed-forward's second matrix: a partial sum over f,
    with another in `plus`, resharded to `to`."""
    with ops.scope("in"):
        h = ops.gate(h, model.feed_forward)
    with ops.scope("out"):
        h = ops.to(h, f"{_tokens(layout)} F_{layout.f}")
        weight = ops.to(w["ffn_out"], f"F_{layout.f} E_{layout.e}")
        return ops.einsum("BLF,FE->BLE", h, weight, plus=plus, to=to)


def reshard_cache(ops: Ops[T], part: T, sharding: str) -> T:
    """Keys [B K D S] or values [B K S D] of a layer (or its rows [B S R]) in another phase's sharding; its
    batch and positions fit both."""
    with ops.scope("switch"):
        return ops.to(part, sharding)


def _tokens(layout: Layout) -> str:
    return f"B_{layout.tokens_b} L_{layout.tokens_l}"


def _replicas(layout: Layout, axes: str) -> str:
    """Those of `axes` that the weights are not stored over: their tokens never have to meet."""
    return "".join(a for a in axes if a not in layout.storage.e + layout.storage.f)
