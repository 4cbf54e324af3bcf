"""Attention with separate keys and values, once: multi-head, multi-query or grouped (section 3.3).

Over an axis of context a prefill splits its queries, and every chip keeps the keys and values of its own
positions (interleaved, see `sharding.interleave`); with a cache, every chip attends for all queries to the
positions it holds, and the parts are put together. A local layer's cache is a ring: position p lies in place
p mod S. Knows nothing about the rest of the block. Dims as in `transformer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from partita.program.norms import softmax
from partita.program.ops import Ops, Pass, Product, Seen, T
from partita.program.positions import alibi_slopes
from partita.sharding.layout import Layout

Cache = tuple[T, T]
"""Keys [B K D S] and values [B K S D] of one layer."""


def attention_products(
    ops: Ops[T], layout: Layout, w: Mapping[str, T], cached: bool
) -> tuple[Product[T], Product[T]]:
    """The projections of keys and values [M B L K D] and of queries [B L K G D], partial sums over e, and
    where attention (to a cache or not) has them."""
    e, fg, fk = layout.e, layout.fg, layout.fk
    with ops.scope("attention/kv"):
        weight = ops.to(w["kv"], f"E_{e}{fg} M K_{fk} D")
        bias = ops.to(w["kv_bias"], f"M K_{fk} D") if "kv_bias" in w else None
    to = f"M B_{layout.attn_b} L K_{layout.attn_k} D"
    kv = Product("attention/kv", "BLE,EMKD->MBLKD", weight, to, bias)
    with ops.scope("attention/q"):
        weight = ops.to(w["q"], f"E_{e} K_{fk} G_{fg} D")
        bias = ops.to(w["q_bias"], f"K_{fk} G_{fg} D") if "q_bias" in w else None
    to = f"B_{layout.attn_b} L_{layout.queries(cached)} K_{layout.attn_k} G_{layout.attn_g} D"
    return kv, Product("attention/q", "BLE,EKGD->BLKGD", weight, to, bias)


def attend(
    run: Pass[T],
    w: Mapping[str, T],
    projected: tuple[T, T],
    cache: Cache[T] | None,
    local: bool,
    to: str | None,
) -> tuple[T, Cache[T]]:
    """What attention adds to the residual, a partial sum over f (resharded to `to` where that is given), and
    the layer's new cache; `projected` are queries, and keys with values."""
    ops, model, layout, lengths = run.ops, run.model, run.layout, run.lengths
    q, kv = projected
    queries = layout.queries(cached=cache is not None)
    kv_positions = ops.to(run.positions, f"B_{layout.attn_b} L")
    q_positions = ops.to(run.positions, f"B_{layout.attn_b} L_{queries}")
    if lengths is not None:
        lengths = ops.to(lengths, f"B_{layout.attn_b}")
    keys, values = ops.take(kv, "M", 0), ops.take(kv, "M", 1)
    if model.qk_norm:
        q = ops.normalise_heads(q, w.get("q_norm"), model)
        keys = ops.normalise_heads(keys, w.get("k_norm"), model)
    if model.positions == "rotary":
        reach = None if run.reach is None else ops.to(run.reach, f"B_{layout.attn_b}")
        q = ops.rotate(q, q_positions, model, local, reach)
        keys = ops.rotate(keys, kv_positions, model, local, reach)
    with ops.scope("attend"):
        if cache is None:
            cache = ops.as_cache(keys, "BKDS"), ops.as_cache(values, "BKSD")
        else:
            assert lengths is not None
            cache = (
                ops.write(cache[0], keys, kv_positions, lengths),
                ops.write(cache[1], values, kv_positions, lengths),
            )
        seen = Seen(
            q_positions,
            lengths,
            model.window if local else None,
            model.head_dim**-0.5 if model.attention_scale is None else model.attention_scale,
            model.attention_softcap,
            alibi_slopes(model) if model.positions == "alibi" else None,
        )
        scores = ops.einsum("BLKGD,BKDS->BKLGS", q, cache[0], causal=True, precise=True)
        shares = softmax(ops, scores, seen)
        mixed = ops.einsum("BKLGS,BKSD->BLKGD", shares, cache[1], causal=True)  # partial over S
        cache = ops.to(cache[0], layout.keys), ops.to(cache[1], layout.cache)
    with ops.scope("o"):
        heads = f"K_{layout.fk} G_{layout.fg} D"
        mixed = ops.to(mixed, f"B_{layout.tokens_b} L_{layout.tokens_l} {heads}")
        weight = ops.to(w["o"], f"{heads} E_{layout.e}")
        return ops.einsum("BLKGD,KGDE->BLE", mixed, weight, to=to), cache
