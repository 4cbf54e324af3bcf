"""Multi-head latent attention, once: keys and values of all heads as one compressed row a token.

Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1. The cache is [B S R], R = C P: a compressed part C, which
is keys and values in one, and a rotary key P that all heads share. No head can split it: over axes of heads
it is replicated, over batch and context it is split as any other.

What the layout keeps on E is here kept on whatever a matrix contracts away: E for the projections down, the
compressed query Q, a head's query D and the compressed values C for those up. So no weight is replicated.
Knows nothing about the rest of the block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, runtime_checkable

from partita.program.norms import normalise, softmax
from partita.program.ops import Ops, Pass, Seen, T
from partita.sharding.layout import Layout
from partita.specs.model import Latent, Model


@runtime_checkable
class LatentOps(Ops[T], Protocol[T]):
    """What an interpreter provides beside `Ops` to run latent attention."""

    def join(self, first: T, rope: T) -> T:
        """[... X] and [... P], neither of them split there, side by side as [... R]."""
        ...

    def halves(self, t: T, rope: int, first: str) -> tuple[T, T]:
        """[... R] as [... X] and its last `rope` entries [... P]; `first` names X."""
        ...

    def read(self, cache: T, queries: T) -> T:
        """The cache at hand: read from memory once, however often it is used for `queries` [B L ...]."""
        ...

    def one_query(self, t: T) -> bool:
        """Whether L is one token."""
        ...


def latent_ops(ops: Ops[T]) -> LatentOps[T]:
    """The same. Raises ValueError for those of an interpreter that does not run latent attention."""
    if not isinstance(ops, LatentOps):
        raise ValueError(f"{type(ops).__name__} does not run latent attention")
    return ops


def attention(run: Pass[T], w: Mapping[str, T], y: T, y_e: T, cache: T | None) -> tuple[T, T]:
    """Attention of y [B_t L_t E_ef] (y_e: the same with E over e alone), a partial sum over f; the new cache.

    One query at a time is absorbed: taken into the space of the cache by the keys' projection, so that the
    cached rows serve as they are, with 2C + P multiplications a head and position instead of D + P + U. More
    queries are cheaper the other way: keys and values of every head are projected from the rows once, with
    C (D + U) multiplications a head and position and weights gathered to where attention has its heads. (The
    two meet at some 100 to 200 queries with the sizes in use.)
    """
    ops, model, layout, lengths = latent_ops(run.ops), run.model, run.layout, run.lengths
    assert model.latent is not None
    asks = f"B_{layout.attn_b} L_{layout.queries(cached=cache is not None)}"
    if lengths is not None:
        lengths = ops.to(lengths, f"B_{layout.attn_b}")
    reach = None if run.reach is None else ops.to(run.reach, f"B_{layout.attn_b}")
    positions = ops.to(run.positions, asks)
    text = _Attention(ops, model, model.latent, layout, w, asks, positions, lengths, reach)
    with ops.scope("q"):
        q, q_rope = text.queries(y, y_e)
    with ops.scope("kv"):
        cache = text.keys(y, run.positions, cache)
    mixed = text.absorbed(q, q_rope, cache) if ops.one_query(y) else text.expanded(q, q_rope, cache)
    with ops.scope("o"):
        mixed = ops.to(mixed, f"{text.tokens} {text.heads} U")
        z = ops.einsum("BLKGU,KGUE->BLE", mixed, ops.to(w["o"], f"{text.heads} U E_{layout.e}"))
    return z, ops.to(cache, layout.latent_cache)


@dataclass(frozen=True)
class _Attention(Generic[T]):
    """The steps of one layer's attention; `positions` are those of the queries, split as `asks`,
    `lengths` the tokens of each sequence that a cache holds, `reach` those of each prompt that is read."""

    ops: LatentOps[T]
    model: Model
    latent: Latent
    layout: Layout
    w: Mapping[str, T]
    asks: str
    positions: T
    lengths: T | None
    reach: T | None

    @property
    def seen(self) -> Seen[T]:
        return Seen(self.positions, self.lengths, None, self.model.head_dim**-0.5)

    @property
    def tokens(self) -> str:
        return f"B_{self.layout.tokens_b} L_{self.layout.tokens_l}"

    @property
    def heads(self) -> str:
        """The heads as the weights have them."""
        return f"K_{self.layout.fk} G_{self.layout.fg}"

    @property
    def attended(self) -> str:
        """The heads as attention has them."""
        return f"K_{self.layout.attn_k} G_{self.layout.attn_g}"

    @property
    def kept(self) -> str:
        """The axes of e that Q, D and C are stored over; over others of e there are replicas of them."""
        return "".join(a for a in self.layout.e if a in self.layout.storage.e)

    def queries(self, y: T, y_e: T) -> tuple[T, T]:
        """[B_t L_t K_fk G_fg D] and [... P], partial sums over e; compressed and projected up, or at once."""
        ops, w, layout, heads = self.ops, self.w, self.layout, self.heads
        if self.latent.query_rank is None:
            q = ops.einsum("BLE,EKGD->BLKGD", y_e, ops.to(w["q"], f"E_{layout.e} {heads} D"))
            return q, ops.einsum("BLE,EKGP->BLKGP", y_e, ops.to(w["q_rope"], f"E_{layout.e} {heads} P"))
        down = ops.to(w["q_down"], f"E_{layout.e}{layout.fg}{layout.fk} Q")
        c = ops.to(ops.einsum("BLE,EQ->BLQ", y, down), f"{self.tokens} Q_{self.kept}")  # was partial over ef
        c = normalise(ops, self.model, c, w.get("q_down_norm"))
        q = ops.einsum("BLQ,QKGD->BLKGD", c, ops.to(w["q_up"], f"Q_{self.kept} {heads} D"))
        return q, ops.einsum("BLQ,QKGP->BLKGP", c, ops.to(w["q_rope"], f"Q_{self.kept} {heads} P"))

    def keys(self, y: T, positions: T, cache: T | None) -> T:
        """The layer's cache [B S R] with the rows of the new tokens, or theirs alone."""
        ops, layout = self.ops, self.layout
        down = ops.to(self.w["kv_down"], f"E_{layout.e}{layout.fg}{layout.fk} R")
        kv = ops.to(ops.einsum("BLE,ER->BLR", y, down), f"B_{layout.attn_b} L R")  # was partial over ef
        positions = ops.to(positions, f"B_{layout.attn_b} L")
        c, rope = ops.halves(kv, self.latent.rope_dim, "C")
        c = normalise(ops, self.model, c, self.w.get("kv_down_norm"))
        kv = ops.join(c, ops.rotate(rope, positions, self.model, False, self.reach))
        if cache is None or self.lengths is None:
            return ops.as_cache(kv, "BSR")
        return ops.write(cache, kv, positions, self.lengths)

    def absorbed(self, q: T, q_rope: T, cache: T) -> T:
        """Values [B_t L_t K_fk G_fg U], partial over e, of queries taken into the space of the rows."""
        ops, heads, kept = self.ops, self.heads, self.kept
        with ops.scope("q"):
            q = ops.to(q, f"{self.tokens} {heads} D_{kept}")
            up = ops.to(self.w["k_up"], f"{heads} D_{kept} C")
            q = ops.einsum("BLKGD,KGDC->BLKGC", q, up)  # partial over e
            q_rope = ops.to(q_rope, str(q_rope.sharding.summing(q.sharding.partial)))
            q = ops.to(ops.join(q, q_rope), f"{self.asks} {self.attended} R")
            q, q_rope = ops.halves(q, self.latent.rope_dim, "C")
            q = ops.join(q, ops.rotate(q_rope, self.positions, self.model, False, self.reach))
        with ops.scope("attend"):
            rows = ops.read(cache, q)
            scores = ops.einsum("BLKGR,BSR->BLKGS", q, rows, causal=True, precise=True)
            shares = softmax(ops, scores, self.seen)
            values, _ = ops.halves(rows, self.latent.rope_dim, "C")
            mixed = ops.einsum("BLKGS,BSC->BLKGC", shares, values, causal=True)  # partial over S
        with ops.scope("v"):
            mixed = ops.to(mixed, f"{self.tokens} {heads} C_{kept}")
            return ops.einsum("BLKGC,CKGU->BLKGU", mixed, ops.to(self.w["v_up"], f"C_{kept} {heads} U"))

    def expanded(self, q: T, q_rope: T, cache: T) -> T:
        """Values [B L K G U] where attention has them, all heads' keys and values projected from the rows."""
        ops, attended = self.ops, self.attended
        with ops.scope("q"):
            q = ops.to(ops.join(q, q_rope), f"{self.asks} {attended} R")
            q, q_rope = ops.halves(q, self.latent.rope_dim, "D")
            q_rope = ops.rotate(q_rope, self.positions, self.model, False, self.reach)
        with ops.scope("attend"):
            c, rope = ops.halves(ops.read(cache, q), self.latent.rope_dim, "C")
            keys = ops.einsum("BSC,KGDC->BSKGD", c, ops.to(self.w["k_up"], f"{attended} D C"))
            values = ops.einsum("BSC,CKGU->BSKGU", c, ops.to(self.w["v_up"], f"C {attended} U"))
            scores = ops.add(
                ops.einsum("BLKGD,BSKGD->BLKGS", q, keys, causal=True, precise=True),
                ops.einsum("BLKGP,BSP->BLKGS", q_rope, rope, causal=True, precise=True),
            )
            shares = softmax(ops, scores, self.seen)
            return ops.einsum("BLKGS,BSKGU->BLKGU", shares, values, causal=True)  # partial over S
