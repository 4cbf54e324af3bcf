"""The corners of the matrix: few sequences, sizes that do not divide, odd meshes, the engine's storage."""

from __future__ import annotations

import pytest
from tests.combinations import ATTENTION, FFNS, MESHES, Case, tiny_model
from tests.engine.bench import Bench
from tests.sizes import every, full, some

from partita.sharding import Mesh

CUBE = Mesh.of((2, 2, 2))


def one_pair(
    prefill: str, decode: str, mesh: Mesh = CUBE, batch: int = 8, longest: int = 11, **model
) -> Bench:
    """Two layouts on the storage the engine would choose for them, run and compared."""
    bench = Bench(Case(tiny_model(**model), mesh, batch, (prefill,), (decode,), longest=longest))
    assert bench.run_all() == 1
    return bench


@pytest.mark.parametrize("number", every(3, range(len(FFNS))))
def test_where_the_engine_stores_its_weights(number: int):
    attentions = list(ATTENTION.values())
    mesh = Mesh.of(MESHES[number % 3])
    prefill = f"{FFNS[(3 * number + 4) % len(FFNS)]}/{attentions[number % len(attentions)]}"
    decode = f"{FFNS[number]}/{attentions[(number // 2) % len(attentions)]}"
    one_pair(prefill, decode, mesh, heads=("MHA", "GQA", "MQA")[number // 4])


@pytest.mark.parametrize("batch", some(1, [2, 1]))
def test_few_long_sequences_split_their_tokens(batch: int):
    bench = one_pair("wg-xyz/heads", "ws2d/batch", batch=batch)
    (prefill,), (decode,) = bench.prefills.values(), bench.decodes.values()
    assert len(prefill.tokens_b) + len(prefill.tokens_l) == 3
    assert len(prefill.tokens_b) == batch - 1  # an axis of 2 for two sequences, none for one
    assert len(decode.attn_b) == batch - 1


def test_attention_over_split_context():
    bench = one_pair("wg-xyz/context", "ws1d/context", batch=1, heads="MQA")
    (prefill,), (decode,) = bench.prefills.values(), bench.decodes.values()
    assert sorted(prefill.queries(cached=False)) == ["x", "y", "z"]
    assert decode.queries(cached=True) == ""  # every chip attends for the one new token
    for layout, positions in ((prefill, bench.width), (decode, bench.capacity)):
        keys = bench.programs.cache(layout, bench.rows, positions)[0][0].value
        assert keys.sharding.shard_shape(keys.shape)[3] == positions // 8


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("ws2d/context", "ws2d/x=none,y=context,z=context"),  # fewer chips: gathered
        ("ws2d/x=context,y=none,z=none", "ws2d/x=none,y=context,z=context"),  # other chips
        full(("ws2d/x=heads,y=batch,z=context", "ws2d/x=context,y=context,z=batch")),  # traded with B and K
        full(("ws2d/context", "ws2d/x=batch,y=heads,z=context")),
    ],
)
def test_the_phases_split_the_context_over_different_axes(prefill: str, decode: str):
    one_pair(prefill, decode, batch=2, longest=13)
    one_pair(prefill, decode, Mesh.of((2, 1, 3)), batch=2, heads="MHA")


@pytest.mark.parametrize("longest", some(1, [1, 5]))
def test_a_context_shorter_than_its_shards(longest: int):
    bench = one_pair("wg-xyz/context", "ws2d/context", batch=1, longest=longest)
    assert (bench.width, bench.capacity) == (8, 16)


def test_fewer_tokens_than_chips():
    bench = one_pair("wg-xyz/heads", "ws2d/heads", batch=1, longest=3)
    (prefill,) = bench.prefills.values()
    assert len(prefill.tokens_l) == 1  # 3 tokens over an axis of 2; the other axes hold replicas
    one_pair("wg-xyz/batch", "wg-xyz/batch", batch=1, longest=1)


def test_sequences_that_trade_their_tokens_axis_for_the_batch():
    bench = one_pair("wg-xyz/x=none,y=batch,z=none", "ws2d/batch", batch=3)
    (prefill,) = bench.prefills.values()
    assert "y" in prefill.tokens_l
    assert prefill.attn_b == "y"


def test_the_phases_split_the_batch_over_different_axes():
    bench = one_pair("ws1d/x=batch,y=heads,z=heads", "ws1d/x=heads,y=batch,z=heads", batch=2, heads="MQA")
    assert [layout.attn_b for layout in (*bench.prefills.values(), *bench.decodes.values())] == ["x", "y"]


def test_attention_that_splits_nothing():
    bench = one_pair("ws2d/x=none,y=none,z=none", "ws1d/x=none,y=none,z=none")
    for layout in (*bench.prefills.values(), *bench.decodes.values()):
        assert layout.attn_b + layout.attn_l + layout.attn_s + layout.attn_k + layout.attn_g == ""


def test_weights_in_replicas():
    bench = one_pair("x=replica,y=replica,z=replica/batch", "x=replica,y=replica,z=replica/batch")
    assert bench.case.stored.e + bench.case.stored.f == ""
    one_pair("x=replica,y=f,z=e/heads", "x=replica,y=e,z=f-gathered/x=batch,y=none,z=context", batch=2)


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [("wg-xyz/heads", "ws2d/batch"), full(("x=e,y=e,z=e/batch", "x=e,y=e,z=e/heads"))],
)
def test_d_model_that_does_not_divide(prefill: str, decode: str):
    bench = one_pair(prefill, decode, d_model=44, norm="layernorm")
    assert bench.parameters["embed"].shape == (104, 48)


@pytest.mark.parametrize(
    ("shape", "prefill", "decode"),
    [
        ((7, 1, 1), "wg-xyz/heads", "ws2d/batch"),
        full(((7,), "ws1d/batch", "ws1d/heads")),
        ((2, 3), "wg-xy/heads", "ws2d/batch"),
        ((1, 1, 1, 2, 1), "wg-xyz/batch", "ws2d/heads"),
        full(((1,), "ws2d/heads", "ws2d/batch")),
    ],
    ids=str,
)
def test_odd_meshes(shape: tuple[int, ...], prefill: str, decode: str):
    one_pair(prefill, decode, Mesh.of(shape), tied=False)


def test_keys_and_values_of_one_head_are_replicas_or_split_by_sequence():
    bench = one_pair("ws1d/heads", "ws1d/batch", heads="MQA")
    parts = []
    for layout in (*bench.prefills.values(), *bench.decodes.values()):
        keys = bench.programs.cache(layout, bench.rows, bench.capacity)[0][0].value
        parts.append(keys.sharding.shard_shape(keys.shape))
    [prefill_rows, prefill_heads, _, _], [decode_rows, decode_heads, _, _] = parts
    assert (prefill_rows, prefill_heads) == (8, 1)
    assert (decode_rows, decode_heads) == (1, 1)
