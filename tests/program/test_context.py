"""Attention split over the context, in closed form: what chips hold, compute and send each other."""

from __future__ import annotations

from partita.cost.ledger import Entry
from partita.cost.step import Step, StepShape, price_cache_reshard, price_step
from partita.sharding import Layout, Mesh, Storage, parse_layout, plan_storage, resolve
from partita.specs import Formats, Model

MESH = Mesh.of((2, 2, 4))
CHIPS, LAYERS, HEADS, D = 16, 3, 16, 8
FORMATS = Formats(weights="bf16", activations="bf16", kv="bf16")
MODEL = Model(
    name="tiny",
    layers=LAYERS,
    d_model=64,
    d_ff=128,
    heads=HEADS,
    kv_heads=1,
    head_dim=D,
    vocabulary=64,
    positions="none",
)


def stored(decode: str, prefill: str) -> Storage:
    return plan_storage(MODEL, MESH, parse_layout(decode, "xyz"), parse_layout(prefill, "xyz"))


def layouts(prefill: str, decode: str, batch: int = 4, prompt: int = 64) -> tuple[Layout, Layout]:
    storage = stored(decode, prefill)
    return (
        resolve(parse_layout(prefill, "xyz"), storage, MESH, batch, prompt),
        resolve(parse_layout(decode, "xyz"), storage, MESH, batch, 1),
    )


def decoded(layout: Layout, batch: int = 4, context: int = 64) -> Step:
    return price_step(MODEL, layout, MESH.size, FORMATS, StepShape(batch, 1, context))


def entries(step: Step, scope: str, kind: str) -> list[Entry]:
    return [e for e in step.ledger.entries if e.scope == f"layer/attention/{scope}" and e.kind == kind]


def test_every_chip_holds_and_reads_its_positions():
    _, layout = layouts("ws2d/context", "ws2d/context")
    step = decoded(layout)
    assert step.kv_bytes == LAYERS * 2 * 4 * 64 * D * 2 / CHIPS
    assert step.ledger.total("kv_bytes") == step.kv_bytes
    products = entries(step, "attend", "einsum")
    assert [entry.flops for entry in products] == [2 * 4 * HEADS * 64 * D / CHIPS] * 2


def test_what_is_too_short_is_padded():
    _, layout = layouts("ws2d/context", "ws2d/context")
    assert [decoded(layout, context=n).context for n in (1, 16, 17, 64, 65)] == [16, 16, 32, 64, 80]


def test_chips_exchange_two_numbers_a_query_and_then_their_parts():
    """Queries whole on every chip; the largest score and the sum in float32; mixed values summed to `o`."""
    _, layout = layouts("ws2d/context", "ws2d/context")
    step = decoded(layout)
    (exchange,) = entries(step, "attend", "all-gather")
    assert (set(exchange.axes), exchange.messages) == (set("xyz"), 1)
    assert exchange.sent_bytes == (CHIPS - 1) * 4 * HEADS * 2 * 4
    mixed = 4 * HEADS * D * 4  # a partial sum in float32, whole on every chip
    scattered, joined = entries(step, "o", "reduce-scatter")
    assert scattered.before[0].dims == "BLKGD"
    assert (set(scattered.axes), scattered.sent_bytes) == (set("yz"), mixed * 7 / 8)
    (reduced,) = entries(step, "o", "all-reduce")
    assert (reduced.axes, reduced.sent_bytes) == ("x", 2 * mixed / 8 / 2)
    out = 4 * 64 * 4 / 2  # what that adds to the residual, each chip's sum over its heads, E over x
    assert (set(joined.axes), joined.sent_bytes) == (set("yz"), out * 7 / 8)


def test_nothing_is_exchanged_where_no_context_is_split():
    for attention in ("heads", "batch", "x=none,y=none,z=none"):
        _, layout = layouts("ws2d/heads", f"ws2d/{attention}", batch=16)
        assert not [
            e for e in decoded(layout, batch=16).ledger.entries if e.scope.endswith("attend") and e.axes
        ]


def test_an_axis_of_one_chip_costs_nothing():
    one = Mesh.of((1, 2, 4))
    found = []
    for attention in ("x=context,y=batch,z=heads", "x=none,y=batch,z=heads"):
        roles = parse_layout(f"x=f,y=f,z=f/{attention}", "xyz")
        layout = resolve(roles, plan_storage(MODEL, one, roles, roles), one, 4, 1)
        step = price_step(MODEL, layout, one.size, FORMATS, StepShape(4, 1, 64))
        counts = [step.ledger.total(c) for c in ("flops", "sent_bytes", "messages", "kv_bytes")]
        found.append([*counts, step.memory_bytes])
    assert found[0] == found[1]


def test_prefill_leaves_the_cache_where_decode_wants_it():
    """Keys and values are gathered for the layer, and a chip keeps those of its own positions."""
    for ffn in ("ws2d", "wg-x", "wg-xyz"):
        prefill, decode = layouts(f"{ffn}/context", "ws2d/context", batch=1)
        step = price_step(MODEL, prefill, MESH.size, FORMATS, StepShape(1, 64))
        assert step.kv_bytes == LAYERS * 2 * 64 * D * 2 / CHIPS
        scores, _ = entries(step, "attend", "einsum")
        assert scores.flops == 2 * 64 * HEADS * 64 * D / CHIPS
        assert not entries(step, "attend", "all-gather")
        ledger = price_cache_reshard(MODEL, prefill, decode, MESH.size, FORMATS, StepShape(1, 64))
        assert ledger.entries == []


def test_a_cache_is_traded_from_positions_to_sequences():
    prefill, decode = layouts("ws2d/context", "ws2d/batch", batch=16)
    ledger = price_cache_reshard(MODEL, prefill, decode, MESH.size, FORMATS, StepShape(16, 50))
    held = LAYERS * 2 * 16 * 64 * D * 2 / CHIPS  # 50 tokens, padded to four for each chip
    moves = [entry for entry in ledger.entries if entry.messages]
    assert [entry.kind for entry in moves] == ["all-to-all"] * 2  # keys, then values
    assert {entry.repeat for entry in moves} == {LAYERS}
    assert ledger.total("sent_bytes") == held * (CHIPS - 1) / CHIPS
