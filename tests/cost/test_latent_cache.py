"""What latent attention keeps, reads, computes and moves, in closed form."""

from typing import Any

import numpy as np
import pytest

from partita.cost.number import array
from partita.cost.step import Step, StepShape, price_cache_reshard, price_step
from partita.sharding import Layout, Mesh, parse_layout, plan_storage, resolve
from partita.specs import Formats, Latent, Model

BF16 = Formats()
# openbmb/MiniCPM3-4B, config.json
MINICPM3 = Model(
    name="minicpm3-4b",
    layers=62,
    d_model=2560,
    d_ff=6400,
    heads=40,
    kv_heads=40,
    head_dim=96,
    vocabulary=73448,
    latent=Latent(kv_rank=256, query_rank=768, nope_dim=64, rope_dim=32, value_dim=64),
)
# attention as in deepseek-ai/DeepSeek-V2-Lite, config.json, which does not compress queries
DIRECT = Model(
    name="direct",
    layers=27,
    d_model=2048,
    d_ff=10944,
    heads=16,
    kv_heads=16,
    head_dim=192,
    vocabulary=102400,
    latent=Latent(kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
)
ALONE, CUBE = Mesh("x", (1,)), Mesh("xyz", (2, 2, 2))


def layout_of(model: Model, text: str, mesh: Mesh, batch: int, queries: int = 1) -> Layout:
    roles = parse_layout(text, mesh.axes)
    return resolve(roles, plan_storage(model, mesh, roles, roles), mesh, batch, queries)


def decode(model: Model, text: str, mesh: Mesh, batch: int, context: int, queries: int = 1) -> Step:
    layout = layout_of(model, text, mesh, batch, queries)
    return price_step(model, layout, mesh.size, BF16, StepShape(batch, queries, context))


def prefill(model: Model, text: str, mesh: Mesh, batch: int, prompt: int) -> Step:
    layout = layout_of(model, text, mesh, batch, prompt)
    return price_step(model, layout, mesh.size, BF16, StepShape(batch, prompt))


def flops(step: Step, *texts: str, column: str = "flops") -> float:
    """Over all layers, of the matrix products that are written so."""
    entries = [e for e in step.ledger.entries if e.what in texts]
    assert {e.what for e in entries} == set(texts)
    return sum(getattr(e, column) * e.repeat for e in entries)


@pytest.mark.parametrize(("model", "numbers"), [(MINICPM3, 62 * (256 + 32)), (DIRECT, 27 * (512 + 64))])
def test_a_token_keeps_one_row_a_layer_for_all_heads(model: Model, numbers: int):
    """Read once in decode, though it is keys and values."""
    step = decode(model, "ws1d/heads", ALONE, batch=3, context=1000)
    assert step.kv_bytes == step.ledger.total("kv_bytes") == 3 * 1000 * numbers * 2
    assert prefill(model, "ws1d/heads", ALONE, batch=3, prompt=1000).kv_bytes == step.kv_bytes
    chunk = decode(model, "ws1d/heads", ALONE, batch=3, context=1000, queries=64)
    assert chunk.kv_bytes == step.kv_bytes
    assert chunk.ledger.total("kv_bytes") == 3 * (1000 - 63) * numbers * 2


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("ws1d/heads", 1),
        ("ws2d/heads", 1),
        ("ws2d/batch", 8),
        ("ws2d/context", 8),
        ("x=e,y=f,z=f/x=batch,y=heads,z=context", 4),
    ],
)
def test_heads_do_not_split_the_cache_batch_and_context_do(text: str, parts: int):
    step = decode(MINICPM3, text, CUBE, batch=8, context=1024)
    assert step.kv_bytes == step.ledger.total("kv_bytes") == 8 * 1024 * 62 * 288 * 2 // parts


@pytest.mark.parametrize("text", ["ws1d/heads", "ws2d/batch", "wg-xyz/batch", "x=e,y=e,z=f/context"])
@pytest.mark.parametrize("model", [MINICPM3, DIRECT])
def test_no_matrix_is_replicated(model: Model, text: str):
    """All chips together hold every parameter once, and the norms, in float32, each."""
    bytes_held = 8 * decode(model, text, CUBE, batch=8, context=64).weight_bytes
    latent = model.latent
    assert latent is not None
    norms = model.layers * (2 * model.d_model + latent.kv_rank + (latent.query_rank or 0)) + model.d_model
    assert bytes_held == 2 * (model.parameters - norms) + 8 * 4 * norms


@pytest.mark.parametrize("text", ["ws1d/heads", "ws2d/batch", "ws2d/context"])
def test_decode_absorbs_the_query(text: str):
    """2 H (2C + P) FLOPs a position, and the projections into and out of the space of the rows a token."""
    step = decode(MINICPM3, text, CUBE, batch=8, context=1024)
    positions = flops(step, "BLKGR,BSR->BLKGS", "BLKGS,BSC->BLKGC")
    assert positions == 62 * 8 * 1024 * 2 * 40 * (2 * 256 + 32) // 8
    assert flops(step, "BLKGD,KGDC->BLKGC", "BLKGC,CKGU->BLKGU") == 62 * 8 * 2 * 40 * 256 * (64 + 64) // 8


def test_decode_computes_two_flops_a_parameter_beside_attention():
    """What is absorbed is each used once a token, like every other matrix."""
    step = decode(MINICPM3, "ws1d/heads", ALONE, batch=8, context=1024)
    attended = flops(step, "BLKGR,BSR->BLKGS", "BLKGS,BSC->BLKGC")
    norms = 62 * (2 * 2560 + 256 + 768) + 2560
    assert step.ledger.total("flops") - attended == 2 * 8 * (MINICPM3.parameters - norms)
    assert step.ledger.total("weight_bytes") == 2 * (MINICPM3.parameters - norms)


@pytest.mark.parametrize("text", ["ws1d/heads", "ws2d/batch", "wg-xyz/batch"])
def test_prefill_expands_the_rows(text: str):
    """2 H (D + P + U) FLOPs a pair, half of them masked, and 2 H C (D + U) a token, as 2 a parameter."""
    step = prefill(MINICPM3, text, CUBE, batch=8, prompt=512)
    pair = "BLKGD,BSKGD->BLKGS", "BLKGP,BSP->BLKGS", "BLKGS,BSKGU->BLKGU"
    assert flops(step, *pair) == 62 * 512**2 * 2 * 40 * (64 + 32 + 64)
    needed = flops(step, *pair, column="needed_flops")
    assert needed == pytest.approx(62 * 512 * 513 / 2 * 2 * 40 * (64 + 32 + 64), rel=1e-12)
    assert flops(step, "BSC,KGDC->BSKGD", "BSC,CKGU->BSKGU") == 62 * 512 * 2 * 40 * 256 * (64 + 64)


def test_a_chunk_expands_the_cached_rows_too():
    step = decode(MINICPM3, "ws1d/heads", ALONE, batch=1, context=1024, queries=256)
    assert flops(step, "BSC,KGDC->BSKGD", "BSC,CKGU->BSKGU") == 62 * 1024 * 2 * 40 * 256 * (64 + 64)
    pair = "BLKGD,BSKGD->BLKGS", "BLKGP,BSP->BLKGS", "BLKGS,BSKGU->BLKGU"
    needed = flops(step, *pair, column="needed_flops")
    assert needed == pytest.approx(62 * sum(range(769, 1025)) * 2 * 40 * (64 + 32 + 64), rel=1e-12)


def test_what_decode_moves_in_one_dimension():
    """All-reduces of Q and R, reduce-scatter and all-gather of E round the feed-forward; no gathered E for
    attention, whose projections down take E as it lies. Partial sums travel in float32."""
    mesh, batch = Mesh("x", (8,)), 16
    step = decode(MINICPM3, "ws1d/heads", mesh, batch=batch, context=64)
    sent = sum(
        e.sent_bytes for e in step.ledger.entries if e.scope.startswith("layer/") and "norm" not in e.scope
    )
    travels, whole = 4, 2
    e = MINICPM3.d_model
    assert BF16.reduce == "f32"
    assert sent == batch * 7 * (2 * (768 + 288) * travels + 2 * e * travels + e * whole) // 8


@pytest.mark.parametrize(("prefill_text", "moved"), [("ws1d/heads", 0), ("wg-xyz/batch", 7 * 8 * 512 // 8)])
def test_the_switch_to_replicas_gathers_rows_and_from_them_is_free(prefill_text: str, moved: int):
    source = layout_of(MINICPM3, prefill_text, CUBE, 8, 512)
    target = layout_of(MINICPM3, "ws1d/heads", CUBE, 8)
    ledger = price_cache_reshard(MINICPM3, source, target, CUBE.size, BF16, StepShape(8, 512))
    assert ledger.total("sent_bytes") == moved * 62 * 288 * 2


def test_ranks_that_do_not_divide_are_padded():
    """Over 5 chips on E: C = 256 to 260, D = 64 to 65, and a row to 260 + 32; nothing else of it."""
    mesh = Mesh("xy", (5, 1))
    layout = layout_of(MINICPM3, "x=e,y=f/heads", mesh, 1)
    padded = layout.storage.padded(MINICPM3, mesh.size)
    assert {d: padded[d] for d in "QCDPRU"} == {"Q": 770, "C": 260, "D": 65, "P": 32, "R": 292, "U": 64}
    step = decode(MINICPM3, "x=e,y=f/heads", mesh, batch=1, context=100)
    assert step.kv_bytes == 62 * 100 * 292 * 2


@pytest.mark.parametrize("model", [MINICPM3, DIRECT])
@pytest.mark.parametrize("text", ["ws2d/batch", "ws2d/context", "x=e,y=f,z=f-gathered/heads"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_arrays_that_broadcast_are_priced_as_each_alone(model: Model, text: str, phase: str):
    """Meshes down, batches across: one pass for all."""
    layout = layout_of(model, text, CUBE, batch=64, queries=128 if phase == "prefill" else 1)
    meshes, batches, tokens = [(1, 1, 1), (2, 2, 2), (4, 1, 2), (3, 5, 1)], [8, 64], [128, 1000]

    def price(sizes: dict[str, Any], batch: Any, tokens: Any) -> Step:
        if phase == "prefill":
            return price_step(model, layout, sizes, BF16, StepShape(batch, tokens))
        return price_step(model, layout, sizes, BF16, StepShape(batch, 1, tokens))

    columns = np.array(meshes, float).T[:, :, None]
    many = price(
        dict(zip("xyz", columns, strict=True)), np.array([batches], float), np.array([tokens], float)
    )
    for i, sizes in enumerate(meshes):
        for j, (batch, length) in enumerate(zip(batches, tokens, strict=True)):
            alone = price(dict(zip("xyz", sizes, strict=True)), batch, length)
            for column in ("flops", "needed_flops", "weight_bytes", "kv_bytes", "sent_bytes", "messages"):
                got = np.broadcast_to(array(many.ledger.total(column)), (4, 2))[i, j]
                assert got == pytest.approx(float(alone.ledger.total(column)), rel=1e-12), column
            assert np.broadcast_to(many.kv_bytes, (4, 2))[i, j] == alone.kv_bytes
            assert np.broadcast_to(many.memory_bytes, (4, 2))[i, j] == pytest.approx(alone.memory_bytes)
