"""Attention's collectives and cache, and the figures of merit, against what Pope et al. 2022 publish."""

from fractions import Fraction

import numpy as np
import pytest

from partita.cost.number import fraction
from partita.cost.roofline import chip_seconds_per_token, context_for_kv_share, mfu
from partita.cost.step import Step, StepShape, price_step
from partita.sharding import Mesh, parse_layout, plan_storage, resolve
from partita.specs import Formats, Model, catalogue_chip, catalogue_model

F32 = Formats(weights="f32", activations="f32", kv="f32", reduce="f32")
CUBE = Mesh.of((4, 4, 4))


def small(kv_heads: int) -> Model:
    return Model(
        name="small",
        layers=1,
        d_model=1024,
        d_ff=4096,
        heads=64,
        kv_heads=kv_heads,
        head_dim=16,
        vocabulary=1,
        feed_forward="gelu",
    )


def decode_step(
    model: Model, layout: str, mesh: Mesh, formats: Formats, *, batch: int, context: int = 1
) -> Step:
    roles = parse_layout(layout, mesh.axes)
    found = resolve(roles, plan_storage(model, mesh, roles, roles), mesh, batch, 1)
    return price_step(model, found, mesh.size, formats, StepShape(batch, 1, context))


@pytest.mark.parametrize("shape", [(8, 1, 1), (2, 2, 2), (1, 2, 4), (4, 4, 4), (1, 1, 1)], ids=str)
def test_batch_attention_trades_heads_for_sequences_in_two_all_to_alls(shape: tuple[int, ...]):
    """Section 3.3: each sends B L H D / n elements a chip, less the chip's own part."""
    mesh, model, batch = Mesh.of(shape), small(kv_heads=1), 128
    ledger = decode_step(model, "ws1d/batch", mesh, F32, batch=batch).ledger
    trade = Fraction(batch * model.heads * model.head_dim, mesh.chips) * Fraction(mesh.chips - 1, mesh.chips)
    for scope in ("layer/attention/q", "layer/attention/o"):
        moved = [entry for entry in ledger.entries if entry.scope == scope and entry.kind == "all-to-all"]
        assert sum(fraction(entry.sent_bytes) for entry in moved) / 4 == trade


@pytest.mark.parametrize(
    ("kv_heads", "layout", "shards"),
    [
        (64, "ws2d/heads", 64),
        (64, "ws2d/batch", 64),
        (1, "ws2d/heads", 1),
        (1, "ws2d/batch", 64),
        (16, "ws2d/heads", 16),
    ],
)
def test_a_chip_holds_its_part_of_the_cache(kv_heads: int, layout: str, shards: int):
    """Multi-head: 1/n split over heads. Multi-query: all of it split over heads, 1/n over the batch."""
    model = small(kv_heads)
    step = decode_step(model, layout, CUBE, F32, batch=128, context=10)
    assert step.kv_bytes * shards == 128 * 10 * 4 * model.kv_elements_per_token


# Pope et al. 2022, Table 1: the longest context of PaLM 540B on 64 chips whose cache takes 30% of memory,
# multi-head attention with d_head 128 against multi-query with 256, in tokens, at batch 128 and 512.
TABLE_1 = [
    ("palm-540b-multihead", "ws2d/heads", 128, 1_320),
    ("palm-540b-multihead", "ws2d/heads", 512, 330),
    ("palm-540b", "ws2d/heads", 128, 660),
    ("palm-540b", "ws2d/heads", 512, 165),
    ("palm-540b", "ws2d/batch", 128, 43_000),
    ("palm-540b", "ws2d/batch", 512, 10_700),
]


@pytest.mark.parametrize(("name", "layout", "batch", "published"), TABLE_1)
def test_the_longest_contexts_of_table_1(name: str, layout: str, batch: int, published: int):
    step = decode_step(catalogue_model(name), layout, CUBE, Formats(), batch=batch)
    longest = context_for_kv_share(catalogue_chip("tpu-v4").hbm_bytes, 0.30, step.kv_bytes)
    assert longest == pytest.approx(published, rel=0.015)
    full = decode_step(catalogue_model(name), layout, CUBE, Formats(), batch=batch, context=int(longest))
    assert full.kv_bytes == step.kv_bytes * longest
    assert full.kv_bytes <= 0.30 * 2**35 < full.kv_bytes + step.kv_bytes


def test_the_cache_of_a_multi_head_palm_takes_3_terabytes():
    """Section 2.1: batch 512, context 2048; three times the size of the parameters."""
    model, mesh = catalogue_model("palm-540b-multihead"), Mesh.of((1, 4, 4))  # its 48 heads divide by 16
    step = decode_step(model, "ws2d/heads", mesh, Formats(), batch=512, context=2048)
    everywhere = step.kv_bytes * mesh.chips
    assert everywhere == 2 * 118 * 48 * 128 * 2 * 512 * 2048
    assert everywhere == pytest.approx(3.04e12, rel=1e-3)
    assert round(float(everywhere) / (2 * model.parameters)) == 3


# -- figures of merit -----------------------------------------------------------------------------------

# Pope et al. 2022, Table 2: PaLM 540B on 64 TPU v4 chips; prefill of 2048 tokens or decode of 64 per
# sequence. Tokens per sequence, batch, latency in seconds with half a unit of its last digit, MFU in percent.
TABLE_2 = [
    (2048, 1, 0.29, 0.005, 43),
    (64, 64, 1.82, 0.005, 14),
    (2048, 512, 85.2, 0.05, 76),
    (64, 512, 6.0, 0.05, 33),
]


@pytest.mark.parametrize(("tokens", "batch", "latency", "rounding", "published"), TABLE_2)
def test_mfu_of_table_2(tokens: int, batch: int, latency: float, rounding: float, published: int):
    """Both are printed rounded: some latency that rounds to the printed one gives an MFU that does."""
    parameters, peak = catalogue_model("palm-540b").parameters, catalogue_chip("tpu-v4").peak_flops["bf16"]
    seconds = np.array([latency + rounding, latency - rounding])
    low, high = 100 * np.asarray(mfu(parameters, batch * tokens, 64, peak, seconds))
    assert low < published + 0.5
    assert high > published - 0.5
    assert high - low < 2  # percent: narrow enough to mean something


@pytest.mark.parametrize(("tokens", "batch", "latency", "rounding", "published"), TABLE_2)
def test_cost_is_the_inverse_of_mfu(tokens: int, batch: int, latency: float, rounding: float, published: int):
    """Section 2: chip-seconds per token, times peak FLOP/s, times MFU, is 2 N."""
    parameters, peak = catalogue_model("palm-540b").parameters, catalogue_chip("tpu-v4").peak_flops["bf16"]
    cost = chip_seconds_per_token(batch * tokens, 64, latency)
    share = mfu(parameters, batch * tokens, 64, peak, latency)
    assert cost * peak * share == pytest.approx(2 * parameters)
