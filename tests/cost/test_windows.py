"""Sliding windows and hybrid layers: what local layers keep, read and compute, in closed form."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.cost.cache import kept_share
from partita.cost.number import array
from partita.cost.step import Step, StepShape, price_cache_reshard, price_step
from partita.sharding import Layout, Mesh, parse_layout, plan_storage, resolve
from partita.specs import Formats, Model

BF16 = Formats()


def model(layers: int, kv_heads: int, head_dim: int, window: int | None, period: int | None) -> Model:
    """Sizes that matter to the cache are the caller's, the others small."""
    return Model(
        name="windowed",
        layers=layers,
        d_model=64,
        d_ff=128,
        heads=2 * kv_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=256,
        window=window,
        global_period=period,
    )


# layers, KV heads, head dim, window and pattern of their config.json
GEMMA_2_9B = model(42, 8, 256, 4096, 2)
GEMMA_2_27B = model(46, 16, 128, 4096, 2)
GEMMA_3_27B = model(62, 16, 128, 1024, 6)
MISTRAL_7B_V01 = model(32, 8, 128, 4096, None)


def layout_of(model: Model, text: str, mesh: Mesh, batch: int, queries: int = 1) -> Layout:
    roles = parse_layout(text, mesh.axes)
    return resolve(roles, plan_storage(model, mesh, roles, roles), mesh, batch, queries)


def decode(model: Model, text: str, mesh: Mesh, batch: int, context: int, queries: int = 1) -> Step:
    layout = layout_of(model, text, mesh, batch, queries)
    return price_step(model, layout, mesh.size, BF16, StepShape(batch, queries, context))


def prefill(model: Model, text: str, mesh: Mesh, batch: int, prompt: int) -> Step:
    layout = layout_of(model, text, mesh, batch, prompt)
    return price_step(model, layout, mesh.size, BF16, StepShape(batch, prompt))


ALONE = Mesh("x", (1,))


def attention_flops(step: Step, column: str = "needed_flops") -> float:
    """FLOPs of scores and mixing, over all layers."""
    entries = [e for e in step.ledger.entries if e.kind == "einsum" and "S" in e.what]
    return sum(getattr(e, column) * e.repeat for e in entries)


@given(st.integers(1, 40), st.integers(0, 40), st.one_of(st.none(), st.integers(1, 50)))
def test_the_kept_share_is_that_of_the_mask(queries: int, before: int, window: int | None):
    positions = before + queries
    query, key = before + np.arange(queries)[:, None], np.arange(positions)[None, :]
    mask = (key <= query) & (key > query - (window or positions))
    assert kept_share(queries, positions, window) * mask.size == pytest.approx(mask.sum())


@pytest.mark.parametrize(
    ("model", "context", "kept"),
    [
        # 21 local layers keep 4096 positions, 21 global ones all; 2 x 8 x 256 numbers of 2 bytes each
        (GEMMA_2_9B, 8192, 21 * (4096 + 8192) * 2 * 8 * 256 * 2),
        (GEMMA_2_9B, 1000, 42 * 1000 * 2 * 8 * 256 * 2),
        (GEMMA_2_27B, 8192, 23 * (4096 + 8192) * 2 * 16 * 128 * 2),
        # of 62 layers every sixth is global: 10
        (GEMMA_3_27B, 131_072, (52 * 1024 + 10 * 131_072) * 2 * 16 * 128 * 2),
        (GEMMA_3_27B, 1024, 62 * 1024 * 2 * 16 * 128 * 2),
        # all local: what is kept stops growing at the window
        (MISTRAL_7B_V01, 32_768, 32 * 4096 * 2 * 8 * 128 * 2),
        (MISTRAL_7B_V01, 4095, 32 * 4095 * 2 * 8 * 128 * 2),
    ],
)
def test_local_layers_keep_and_read_their_window(model: Model, context: int, kept: int):
    step = decode(model, "ws1d/heads", ALONE, batch=3, context=context)
    assert step.kv_bytes == 3 * kept == 3 * 2 * model.kv_elements(context)
    assert step.ledger.total("kv_bytes") == 3 * kept
    assert prefill(model, "ws1d/heads", ALONE, batch=3, prompt=context).kv_bytes == 3 * kept


@pytest.mark.parametrize("text", ["ws1d/heads", "ws2d/batch", "wg-xyz/batch", "ws2d/context"])
def test_every_split_of_the_cache_divides_the_window_too(text: str):
    mesh = Mesh("xyz", (2, 2, 2))
    step = decode(GEMMA_3_27B, text, mesh, batch=8, context=16_384)
    whole = 8 * 2 * GEMMA_3_27B.kv_elements(16_384)
    assert step.kv_bytes == step.ledger.total("kv_bytes") == whole // 8


def test_a_window_that_does_not_divide_is_padded_to_the_chips_it_lies_over():
    step = decode(model(4, 7, 32, 4096, 2), "ws1d/context", Mesh("x", (7,)), batch=1, context=8190)
    assert step.kv_bytes == 2 * (8190 // 7 + 4102 // 7) * 2 * 7 * 32 * 2


def test_decode_attends_to_the_window():
    """4 B H D FLOPs for each position a layer sees."""
    step = decode(GEMMA_2_9B, "ws1d/heads", ALONE, batch=5, context=8192)
    seen = 21 * (4096 + 8192)
    assert attention_flops(step) == attention_flops(step, "flops") == 4 * 5 * 16 * 256 * seen


@pytest.mark.parametrize(
    ("prompt", "model"), [(3000, GEMMA_3_27B), (500, GEMMA_3_27B), (5000, MISTRAL_7B_V01)]
)
def test_prefill_needs_the_band_of_local_layers(prompt: int, model: Model):
    """Query number i sees i positions, in a local layer the last `window` of them."""
    step = prefill(model, "ws1d/heads", ALONE, batch=2, prompt=prompt)
    band = sum(min(i, model.window or i) for i in range(1, prompt + 1))
    triangle = prompt * (prompt + 1) // 2
    pairs = model.local_layers * band + model.global_layers * triangle
    assert attention_flops(step) == pytest.approx(4 * 2 * model.heads * model.head_dim * pairs, rel=1e-12)
    assert attention_flops(step, "flops") == 4 * 2 * model.heads * model.head_dim * model.layers * prompt**2


def test_a_chunk_reads_what_its_first_query_sees():
    """256 queries on 8192 positions: 255 of these need not be read back, having just been made. A local layer
    holds what the first of them sees, and the others themselves: 1023 positions before them, and 256."""
    step = decode(GEMMA_3_27B, "ws1d/heads", ALONE, batch=1, context=8192, queries=256)
    position = 2 * 16 * 128 * 2
    assert step.ledger.total("kv_bytes") == (52 * 1024 + 10 * (8192 - 255)) * position
    assert step.kv_bytes == (52 * (1023 + 256) + 10 * 8192) * position
    seen = 52 * 256 * 1024 + 10 * sum(range(8192 - 255, 8193))
    assert attention_flops(step) == pytest.approx(4 * 32 * 128 * seen, rel=1e-12)


def test_a_window_nobody_fills_costs_what_no_window_does():
    one_base = GEMMA_3_27B.model_copy(update={"local_rotary_base": None})
    full = one_base.model_copy(update={"window": None, "global_period": None})
    for step in (decode, prefill):
        local, plain = (step(m, "ws1d/heads", Mesh("x", (4,)), 4, 1024) for m in (one_base, full))
        for column in ("flops", "needed_flops", "weight_bytes", "kv_bytes", "sent_bytes", "messages"):
            assert local.ledger.total(column) == pytest.approx(plain.ledger.total(column), rel=1e-12), column
        assert local.memory_bytes == plain.memory_bytes


def test_the_ledger_tells_local_from_global_layers():
    scopes = {
        e.scope.split("/")[1]: e.repeat
        for e in decode(GEMMA_3_27B, "ws1d/heads", ALONE, 1, 9).ledger.entries
        if e.scope.startswith("layer/")
    }
    assert scopes == {"global": 10, "local": 52}
    alone = decode(MISTRAL_7B_V01, "ws1d/heads", ALONE, 1, 9).ledger.entries
    assert {e.repeat for e in alone if e.scope.startswith("layer/")} == {32}
    assert not any("local" in e.scope or "global" in e.scope for e in alone)


def test_the_switch_moves_the_windows_alone():
    """Heads to batch over 4 chips is an all-to-all of what each holds, 3/4 of it sent."""
    mesh, prompt = Mesh("x", (4,)), 8192
    heads, batch = (layout_of(GEMMA_3_27B, f"ws1d/{split}", mesh, batch=4) for split in ("heads", "batch"))
    ledger = price_cache_reshard(GEMMA_3_27B, heads, batch, mesh.size, BF16, StepShape(4, prompt))
    assert ledger.total("sent_bytes") == 4 * 2 * GEMMA_3_27B.kv_elements(prompt) // 4 * 3 // 4
    assert [e.kind for e in ledger.entries] == ["all-to-all"] * 4  # keys and values of either kind of layer
    assert [e.repeat for e in ledger.entries] == [10, 10, 52, 52]


@pytest.mark.parametrize("model", [GEMMA_3_27B, MISTRAL_7B_V01], ids=["hybrid", "local"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_arrays_that_broadcast_are_priced_as_each_alone(model: Model, phase: str):
    """Meshes down, batches across: one pass for all."""
    layout = layout_of(model, "ws2d/batch", Mesh("xyz", (2, 2, 2)), batch=64, queries=1)
    meshes, batches, tokens = [(1, 1, 1), (2, 2, 2), (4, 1, 2)], [8, 64], [700, 5000]

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
            for column in ("flops", "needed_flops", "kv_bytes", "sent_bytes"):
                got = np.broadcast_to(array(many.ledger.total(column)), (3, 2))[i, j]
                assert got == pytest.approx(float(alone.ledger.total(column)), rel=1e-12), column
            assert np.broadcast_to(many.kv_bytes, (3, 2))[i, j] == alone.kv_bytes
            assert np.broadcast_to(many.memory_bytes, (3, 2))[i, j] == pytest.approx(alone.memory_bytes)


@given(st.integers(1, 6000), st.integers(1, 6000), st.integers(1, 20_000))
def test_a_longer_window_is_never_cheaper(first: int, second: int, context: int):
    shorter, longer = sorted((first, second))
    less, more = (
        decode(GEMMA_3_27B.model_copy(update={"window": w}), "ws1d/heads", ALONE, 1, context)
        for w in (shorter, longer)
    )
    assert less.kv_bytes <= more.kv_bytes <= 2 * GEMMA_3_27B.kv_elements_per_token * context
    assert attention_flops(less) <= attention_flops(more)
