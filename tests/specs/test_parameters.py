"""The table of parameters: shapes, counts, channels and padding as the papers and the sizes give them."""

import itertools
from typing import Any

import pytest

from partita.specs import Formats, Latent, Model, catalogue_model, model_names
from partita.specs.parameters import (
    all_parameters,
    dim_sizes,
    parameter_table,
    scale_name,
)

TINY: dict[str, Any] = {
    "name": "tiny",
    "layers": 12,
    "d_model": 64,
    "d_ff": 256,
    "heads": 8,
    "kv_heads": 2,
    "head_dim": 16,
    "vocabulary": 100,
    "max_context": 64,
}
LATENT = Latent(kv_rank=24, query_rank=32, nope_dim=12, rope_dim=4, value_dim=10)
DEEPSEEK = {**TINY, "kv_heads": 8, "latent": LATENT}
EVERYTHING = dict.fromkeys(("qkv_bias", "output_bias", "ffn_bias", "qk_norm", "post_norms"), True)
FORMS = list(
    itertools.product(
        ["serial", "parallel"], ["rmsnorm", "layernorm"], [True, False], ["swiglu", "gelu"], [True, False]
    )
)


def _model(**changes: Any) -> Model:
    return Model(**{**TINY, **changes})


def test_shapes_of_a_serial_model():
    sizes = {"layers": 2, "d_model": 48, "d_ff": 80, "heads": 6, "kv_heads": 3, "head_dim": 8}
    model = _model(**sizes, vocabulary=40, norm="layernorm", tied_embedding=False)
    block = {
        "norm": (2, 48),
        "ffn_norm": (2, 48),
        "q": (48, 3, 2, 8),
        "kv": (48, 2, 3, 8),
        "o": (3, 2, 8, 48),
        "ffn_in": (48, 2, 80),
        "ffn_out": (80, 48),
    }
    assert {name: row.shape for name, row in all_parameters(model).items()} == {
        **{"embed": (40, 48), "final_norm": (2, 48), "unembed": (40, 48)},
        **{f"layers.{i}.{name}": shape for i in range(2) for name, shape in block.items()},
    }


def test_shapes_of_latent_attention():
    """Equations 9 to 19 of DeepSeek-V2 (arXiv 2405.04434), all heads of a matrix apart."""
    table = parameter_table(Model(**DEEPSEEK))
    assert {name: row.shape for name, row in table.items() if row.part == "attention"} == {
        "q_down": (64, 32),
        "q_down_norm": (1, 32),
        "q_up": (32, 8, 1, 12),
        "q_rope": (32, 8, 1, 4),
        "kv_down": (64, 24 + 4),
        "kv_down_norm": (1, 24),
        "k_up": (8, 1, 12, 24),
        "v_up": (24, 8, 1, 10),
        "o": (8, 1, 10, 64),
    }


@pytest.mark.parametrize("form", FORMS)
def test_a_form_of_model_counts_as_its_closed_form(form: tuple[str, str, bool, str, bool]):
    """L ((1 + M) E F + 2 E D (H + K)) + V E, once or twice, and the norms' vectors (Pope et al. 2022)."""
    block, norm, held, feed_forward, tied = form
    fields = {"block": block, "norm": norm, "norm_parameters": held, "feed_forward": feed_forward}
    vectors = (2 if norm == "layernorm" else 1) if held else 0
    norms = vectors * 64 * (12 * (1 if block == "parallel" else 2) + 1)
    matrices = 12 * ((3 if feed_forward == "swiglu" else 2) * 64 * 256 + 2 * 64 * 16 * (8 + 2))
    model = _model(**fields, tied_embedding=tied)
    assert model.parameters == matrices + norms + (1 if tied else 2) * 100 * 64
    assert model.parameters == sum(row.count for row in all_parameters(model).values())


@pytest.mark.parametrize(
    ("changes", "extra"),
    [
        ({"qkv_bias": True}, 12 * 16 * (8 + 2 + 2)),
        ({"output_bias": True}, 12 * 64),
        ({"ffn_bias": True}, 12 * (2 * 256 + 64)),
        ({"qk_norm": True}, 12 * 2 * 16),
        ({"post_norms": True}, 12 * 2 * 64),
        ({"feed_forward": "gelu"}, -12 * 64 * 256),
        ({"block": "parallel"}, -12 * 64),
        ({"block": "parallel", "separate_norms": True}, 0),
        ({"positions": "learned"}, 64 * 64),
        ({"tied_embedding": False}, 100 * 64),
        (
            {
                "window": 8,
                "global_period": 6,
                "rotary_scaling": {"kind": "linear", "factor": 8.0},
                "logit_softcap": 30.0,
            },
            0,
        ),
    ],
)
def test_a_feature_adds_its_own_parameters(changes: dict[str, Any], extra: int):
    assert _model(**changes).parameters - _model().parameters == extra


def test_latent_attention_counts_every_projection_and_norm():
    model = Model(**DEEPSEEK)
    down_query, norm_query, up_query = 64 * 32, 32, 32 * 8 * (12 + 4)
    down, norm, up = 64 * (24 + 4), 24, 24 * 8 * (12 + 10)
    out = 8 * 10 * 64
    assert model.attention_parameters == down_query + norm_query + up_query + down + norm + up + out
    direct = model.model_copy(update={"latent": LATENT.model_copy(update={"query_rank": None})})
    difference = 64 * 8 * 16 - (down_query + norm_query + up_query)
    assert direct.attention_parameters - model.attention_parameters == difference


@pytest.mark.parametrize("name", model_names())
def test_every_split_dim_of_the_catalogue_has_a_size(name: str):
    """A padded size is needed for every dim that a layout splits, and no parameter comes twice."""
    model = catalogue_model(name)
    for row in parameter_table(model).values():
        split = row.sharding("e", "f", "g", "k").split()
        assert "".join(word[0] for word in split) == row.dims
        assert all(word[0] in dim_sizes(model) for word in split if "_" in word)
        assert set(row.own).isdisjoint(word[0] for word in split if "_" in word)
        assert set(row.channels) <= set(row.dims)
    layers = [row for row in parameter_table(model).values() if row.in_block]
    ends = len(parameter_table(model)) - len(layers)
    assert len(all_parameters(model)) == ends + model.layers * len(layers)


@pytest.mark.parametrize(
    ("name", "scales", "summed"),
    [
        ("embed", (100,), (1,)),
        ("layers.3.q", (2, 4, 16), (0,)),
        ("layers.3.kv", (2, 2, 16), (0,)),
        ("layers.3.o", (64,), (0, 1, 2)),
        ("layers.3.ffn_in", (2, 256), (0,)),
        ("layers.3.ffn_out", (64,), (0,)),
    ],
)
def test_a_matrix_in_int8_has_a_scale_for_each_output(name: str, scales: Any, summed: Any):
    row = all_parameters(_model(**EVERYTHING, positions="learned"))[name]
    assert row.name == name
    assert (row.quantisable, row.scale_shape, row.summed_axes) == (True, scales, summed)
    assert scale_name(name) == f"{name}_scale"


def test_what_int8_weights_leave_is_a_vector_or_the_table_of_positions():
    rows = parameter_table(_model(**EVERYTHING, positions="learned")).values()
    left = {row.name: row.number_format(Formats(weights="int8")) for row in rows if not row.quantisable}
    assert left.pop("positions") == Formats().activations
    assert set(left.values()) == {"f32"}
    assert all(name.endswith(("norm", "bias")) for name in left)
    assert {row.number_format(Formats(weights="int8")) for row in rows if row.quantisable} == {"int8"}


def test_only_the_dims_of_the_model_are_padded():
    """A norm of each head keeps its size where latent attention pads the part of a head without positions."""
    padded = {
        "E": 72,
        "F": 256,
        "V": 104,
        "K": 8,
        "G": 1,
        "D": 16,
        "C": 24,
        "R": 28,
        "Q": 32,
        "P": 4,
        "U": 10,
    }
    table = parameter_table(Model(**DEEPSEEK, qk_norm=True, positions="learned"))
    assert table["q_norm"].padded_sizes(padded) == {"M": 1, "D": 16}
    assert table["k_up"].padded_sizes(padded) == {"K": 8, "G": 1, "D": 16, "C": 24}
    assert table["ffn_in"].padded_sizes(padded) == {"E": 72, "M": 2, "F": 256}
    assert table["positions"].padded_sizes(padded) == {"S": 64, "E": 72}


def test_a_changed_copy_of_a_model_has_a_table_of_its_own():
    model = _model()
    before = model.parameters
    wider = model.model_copy(update={"d_ff": 512})
    assert wider.parameters - before == 12 * 3 * 64 * 256
    assert (model.parameters, parameter_table(wider)["ffn_out"].shape) == (before, (512, 64))
