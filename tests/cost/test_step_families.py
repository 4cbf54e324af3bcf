"""What a step holds and moves for families of models: biases, more norms, learned positions, few KV heads."""

import math

import pytest

from partita.cost.step import Step, StepShape, price_step
from partita.sharding import Layout, Mesh, parse_layout, plan_storage, resolve
from partita.specs import Formats, Model, catalogue_model, model_names
from partita.specs.parameters import all_parameters

F32 = Formats(weights="f32", activations="f32", kv="f32", reduce="f32")
ALONE, CUBE = Mesh("x", (1,)), Mesh("xyz", (2, 2, 2))


def model(**other: object) -> Model:
    """Head dim is not d_model / heads, and every dim divides by 8."""
    sizes = {"layers": 3, "d_model": 64, "d_ff": 96, "heads": 16, "kv_heads": 8, "head_dim": 24}
    return Model.model_validate({"name": "family", "vocabulary": 128, **sizes, **other})


FAMILIES = {
    "qwen 2": model(qkv_bias=True),
    "qwen 3": model(qk_norm=True),
    "gemma 2": model(post_norms=True, window=16, global_period=2, feed_forward="geglu"),
    "gpt-3": model(
        norm="layernorm",
        feed_forward="gelu",
        qkv_bias=True,
        output_bias=True,
        ffn_bias=True,
        positions="learned",
        max_context=200,
    ),
    "gpt-neox": model(
        norm="layernorm",
        feed_forward="exact_gelu",
        block="parallel",
        separate_norms=True,
        qkv_bias=True,
        output_bias=True,
        ffn_bias=True,
        tied_embedding=False,
    ),
    "no norm parameters": model(norm_parameters=False, post_norms=True, qk_norm=True),
}


def step(
    model: Model, text: str, mesh: Mesh, batch: int = 8, context: int = 64, formats: Formats = F32
) -> Step:
    return price_step(
        model, layout_of(model, text, mesh, batch), mesh.size, formats, StepShape(batch, 1, context)
    )


def layout_of(model: Model, text: str, mesh: Mesh, batch: int) -> Layout:
    roles = parse_layout(text, mesh.axes)
    return resolve(roles, plan_storage(model, mesh, roles, roles), mesh, batch, 1)


@pytest.mark.parametrize("model", FAMILIES.values(), ids=FAMILIES)
def test_a_chip_alone_holds_every_parameter(model: Model):
    assert step(model, "ws1d/heads", ALONE).weight_bytes == 4 * model.parameters
    names = layout_of(model, "ws1d/heads", ALONE, 1).storage.weights(model)
    assert set(names) == {name.rpartition(".")[2] for name in all_parameters(model)}


@pytest.mark.parametrize("text", ["ws1d/heads", "ws2d/batch", "wg-xyz/batch"])
@pytest.mark.parametrize("model", FAMILIES.values(), ids=FAMILIES)
def test_chips_share_the_matrices_and_each_has_the_vectors(model: Model, text: str):
    """Whole on every chip: norms, biases of E, the table of positions; split as heads or F: other biases.

    Matrices are in int8, with a float32 scale for each output channel that is split as the channel is; all
    else is in float32 but the positions, which are in the format of activations.
    """
    formats = Formats(weights="int8", activations="bf16", kv="bf16")
    held = step(model, text, CUBE, formats=formats).weight_bytes
    layout = layout_of(model, text, CUBE, 8)
    over_e, over_f = 2 ** len(layout.storage.e), 2 ** len(layout.storage.f)
    channels = {  # the vocabulary, heads and F are split over f, E over e
        "embed": 128 // over_f,
        "unembed": 128 // over_f,
        "q": 16 * 24 // over_f,
        "kv": 2 * 8 * 24 // over_f,
        "o": 64 // over_e,
        "ffn_in": model.ffn_inputs * 96 // over_f,
        "ffn_out": 64 // over_e,
    }
    expected = 0
    for full_name, row in all_parameters(model).items():
        name, count = full_name.rpartition(".")[2], math.prod(row.shape)
        if name.endswith("norm") or name in ("o_bias", "ffn_out_bias"):
            expected += 4 * count
        elif name.endswith("bias"):
            expected += 4 * count // over_f
        elif name == "positions":
            expected += 2 * count
        else:
            expected += count // 8 + 4 * channels[name]
    assert held == expected


def test_post_norms_add_two_small_reductions_a_layer():
    plain, more = model(), model(post_norms=True)
    kinds = [
        sum(
            e.messages * e.repeat
            for e in step(m, "ws2d/heads", CUBE).ledger.entries
            if e.kind == "all-reduce"
        )
        for m in (plain, more)
    ]
    assert kinds[1] - kinds[0] == 2 * more.layers
    sent = [step(m, "ws2d/heads", CUBE).ledger.total("sent_bytes") for m in (plain, more)]
    assert sent[1] - sent[0] == 2 * more.layers * 2 * 8 * 4 * 7 // 8  # 8 float32 moments in each


def test_two_norms_of_one_residual_move_no_more_than_one():
    one, two = model(block="parallel"), model(block="parallel", separate_norms=True)
    for text in ("ws1d/heads", "ws2d/batch", "wg-xy/batch"):
        assert step(one, text, CUBE).ledger.collectives() == step(two, text, CUBE).ledger.collectives()


def test_learned_positions_move_nothing():
    plain = model(positions="none")
    learned = model(positions="learned", max_context=100)
    for text in ("ws1d/heads", "ws2d/batch", "wg-xy/batch"):
        assert step(plain, text, CUBE).ledger.collectives() == step(learned, text, CUBE).ledger.collectives()
    more = step(learned, "ws2d/batch", CUBE).weight_bytes - step(plain, "ws2d/batch", CUBE).weight_bytes
    assert more == 4 * 100 * 64


@pytest.mark.parametrize(
    ("kv_heads", "text", "kept"),
    [
        (8, "ws1d/heads", 1),  # a KV head each
        (4, "ws1d/heads", 1),  # two chips have the same KV head, and split its queries
        (2, "ws1d/heads", 1),
        (1, "ws1d/heads", 1),  # multi-query: all chips have the one
        (1, "ws1d/batch", None),  # its cache split by sequences instead
        (2, "ws1d/batch", None),
        (1, "ws1d/context", None),
    ],
)
def test_few_kv_heads_are_replicated_over_heads_and_not_over_batch(
    kv_heads: int, text: str, kept: int | None
):
    """`kept` KV heads of every sequence on each of 8 chips, else all heads of an eighth of the positions."""
    found = step(model(kv_heads=kv_heads), text, CUBE)
    whole = 3 * 2 * 8 * 64 * 24 * 4  # layers, keys and values, sequences, positions, head dim, float32
    assert found.kv_bytes == (whole * kept if kept else whole * kv_heads // 8)
    assert found.ledger.total("kv_bytes") == found.kv_bytes


def test_attention_counts_heads_by_their_own_size():
    """2 B (2 E H D + 2 E K D + 2 H D S) FLOPs: nothing of it is d_model / heads."""
    found = step(model(), "ws1d/heads", ALONE)
    attention = sum(e.flops * e.repeat for e in found.ledger.entries if "/attention" in e.scope)
    assert attention == 3 * 2 * 8 * (2 * 64 * 16 * 24 + 2 * 64 * 8 * 24 + 2 * 16 * 24 * 64)


@pytest.mark.parametrize("name", model_names())
def test_every_model_of_the_catalogue_is_priced(name: str):
    """All its parameters, the cache its description states, and in a step what any layout of it needs."""
    known = catalogue_model(name)
    context = 10_000 if known.max_context is None else min(known.max_context, 10_000)
    alone = step(known, "ws1d/heads", ALONE, batch=2, context=context)
    assert alone.weight_bytes == 4 * known.parameters
    assert alone.kv_bytes == alone.ledger.total("kv_bytes") == 2 * 4 * known.kv_elements(context)
    spread = step(known, "ws2d/batch", CUBE, batch=8, context=context)
    assert 8 * spread.weight_bytes >= alone.weight_bytes
    assert 8 * spread.kv_bytes >= 4 * alone.kv_bytes
    assert spread.ledger.total("sent_bytes") > 0
