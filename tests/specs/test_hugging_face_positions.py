"""Rotary scaling: what files say of it, in every form, and what is refused by name."""

import math
from typing import Any

import pytest

from partita.errors import InputError
from partita.specs import Model, catalogue_model, model_from_config
from partita.specs.model import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongropeScaling,
    OtherScaling,
    YarnScaling,
)

CONFIG: dict[str, Any] = {
    **{"model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1},
    **{"num_attention_heads": 4, "vocab_size": 10, "max_position_embeddings": 8192},
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def _scaling(scaling: dict[str, Any], **changes: Any):
    return model_from_config(CONFIG | {"rope_scaling": scaling} | changes).rotary_scaling


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"type": "linear", "factor": 2}, LinearScaling(factor=2.0)),
        (
            LLAMA3 | {"original_max_position_embeddings": 4096},
            Llama3Scaling(factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position=4096),
        ),
        (
            {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048, "finetuned": True},
            YarnScaling(factor=4, original_max_position=2048),
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": None, "truncate": False},
            YarnScaling(factor=4, original_max_position=8192, beta_fast=16, truncate=False),
        ),
        (
            {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 1024},
            YarnScaling(factor=8, original_max_position=1024),
        ),
        (
            {"rope_type": "yarn", "factor": 2.0, "attention_factor": 1.5, "mscale": 1, "mscale_all_dim": 2},
            YarnScaling(factor=2, original_max_position=8192, attention_factor=1.5),
        ),
        (
            {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 7},
            DynamicScaling(factor=2, original_max_position=8192),
        ),
        (
            {"rope_type": "longrope", "short_factor": [1] * 8, "long_factor": [2.5] * 8, "factor": 2.0},
            LongropeScaling(
                **{"short_factors": (1.0,) * 8, "long_factors": (2.5,) * 8, "factor": 2},
                original_max_position=8192,
            ),
        ),
        (
            {"rope_type": "longrope", "short_factor": [1] * 8, "long_factor": [2.5] * 8}
            | {"original_max_position_embeddings": 2048, "attention_factor": 1.25},
            LongropeScaling(
                **{"short_factors": (1.0,) * 8, "long_factors": (2.5,) * 8, "factor": 4},
                **{"original_max_position": 2048, "attention_factor": 1.25},
            ),
        ),
        ({"rope_type": "longrope"}, OtherScaling(name="longrope")),
        ({"rope_type": "proportional", "factor": 2.0}, OtherScaling(name="proportional")),
        (  # of other libraries, which transformers ignores
            {"rope_type": "yarn", "factor": 2.0, "attn_factor": 0.5, "extrapolation_factor": 1.0},
            YarnScaling(factor=2, original_max_position=8192),
        ),
        (
            {"rope_type": "yarn", "factor": 2.0, "beta_fast": 0, "beta_slow": 0},
            YarnScaling(factor=2, original_max_position=8192),
        ),
    ],
)
def test_each_kind_is_read_with_its_numbers(scaling: dict[str, Any], expected: Any):
    assert _scaling(scaling) == expected
    newer = CONFIG | {"rope_parameters": scaling | {"rope_theta": 5e5}}
    model = model_from_config(newer)
    assert (model.rotary_scaling, model.rotary_base) == (expected, 5e5)


def test_the_original_length_may_stand_outside():
    found = _scaling(LLAMA3, original_max_position_embeddings=1024)
    assert isinstance(found, Llama3Scaling)
    assert found.original_max_position == 1024


def test_two_scales_of_the_logarithm_become_one_attention_factor():
    found = _scaling({"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 0.5})
    assert isinstance(found, YarnScaling)
    expected = (0.1 * math.log(40) + 1) / (0.05 * math.log(40) + 1)
    assert found.attention_factor == pytest.approx(expected)


@pytest.mark.parametrize(
    ("scaling", "field"),
    [
        ({"type": "linear"}, "factor"),
        ({"type": "linear", "factor": 0.5}, "factor"),
        ({"type": "linear", "factor": "2"}, "factor"),
        ({"type": "linear", "factor": True}, "factor"),
        ({"type": "linear", "factor": math.inf}, "factor"),
        ({"type": "linear", "factor": 2.0, "mrope_section": [1, 1]}, "mrope_section"),
        ({"type": "default", "attn_temperature": 2.0}, "attn_temperature"),
        ({"type": "llama3", "factor": 2.0}, "low_freq_factor"),
        (LLAMA3 | {"low_freq_factor": 4.0}, "low_freq_factor"),
        (LLAMA3 | {"original_max_position_embeddings": 0}, "original_max_position_embeddings"),
        ({"type": "yarn", "factor": 2.0, "truncate": 1}, "truncate"),
        ({"type": "dynamic"}, "factor"),
        ({"type": "longrope", "short_factor": 1.0, "long_factor": [2.0] * 8}, "short_factor"),
        ({"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [0] * 8}, "long_factor"),
        ({"type": "yarn", "factor": 2.0, "full_attention": {}}, "full_attention"),
        ({"type": "yarn", "factor": 2.0, "beta_slow": -1}, "beta_slow"),
        ({"type": "yarn", "factor": 2.0, "attention_factor": "big"}, "attention_factor"),
        ({"type": "yarn", "factor": 2.0, "mscale": "big", "mscale_all_dim": 1}, "mscale"),
    ],
)
def test_what_a_scaling_cannot_be_is_refused_by_name(scaling: dict[str, Any], field: str):
    with pytest.raises(InputError, match="not supported in config") as caught:
        _scaling(scaling)
    assert caught.value.field == f"rope_scaling.{field}"


def test_lists_of_longrope_have_a_number_for_each_pair():
    lists = {"rope_type": "longrope", "short_factor": [1.0] * 7, "long_factor": [2.0] * 8}
    with pytest.raises(InputError, match="short_factors of longrope must be 8, one for each pair"):
        _scaling(lists)


def test_only_whole_heads_turn_where_the_family_turns_no_part():
    scaling = {"type": "linear", "factor": 2.0}
    with pytest.raises(InputError, match="in this family only whole heads turn") as caught:
        _scaling(scaling, partial_rotary_factor=0.5)
    assert caught.value.field == "partial_rotary_factor"
    neox = CONFIG | {"model_type": "gpt_neox", "rotary_pct": 0.5, "rope_scaling": scaling}
    assert model_from_config(neox).rotary_fraction == 0.5


def test_a_base_beside_the_parameters_has_the_familys_own_name():
    """`rope_theta` says nothing of GPT-NeoX, `rotary_emb_base` nothing of Llama."""
    both = {"rope_theta": 500.0, "rotary_emb_base": 700.0, "partial_rotary_factor": 0.75}
    neox = model_from_config(CONFIG | {"model_type": "gpt_neox"} | both)
    assert (neox.rotary_base, neox.rotary_fraction) == (700, 0.25)
    del both["rotary_emb_base"]
    assert model_from_config(CONFIG | {"model_type": "gpt_neox"} | both).rotary_base == 10_000
    assert model_from_config(CONFIG | both).rotary_base == 500


def test_dynamic_scaling_reaches_beyond_the_length_that_it_starts_at():
    assert (
        model_from_config(CONFIG | {"rope_scaling": {"type": "dynamic", "factor": 2}}).max_context == 16_384
    )


def test_local_layers_are_not_scaled():
    config = {
        **{"model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 64, "head_dim": 16},
        **{"num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 10, "sliding_window": 8},
    }
    local = {"rope_type": "default", "rope_theta": 20_000.0}
    whole = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    parameters = {"full_attention": whole, "sliding_attention": local}
    flat = model_from_config(config | {"rope_parameters": whole, "rope_local_base_freq": 30_000.0})
    assert flat.rotary_scaling is None  # what stands beside the kinds of layers is never looked at
    assert (flat.rotary_base, flat.local_rotary_base) == (1e6, 30_000)
    older = model_from_config(config | {"rope_scaling": whole | {"rope_theta": 5e5}, "rope_theta": 7.0})
    assert (older.rotary_scaling, older.rotary_base) == (LinearScaling(factor=8), 5e5)
    only_local = model_from_config(config | {"rope_parameters": {"sliding_attention": local}})
    assert (only_local.rotary_base, only_local.local_rotary_base) == (1e6, 20_000)
    model = model_from_config(config | {"rope_parameters": parameters})
    assert (model.rotary_scaling, model.rotary_base) == (LinearScaling(factor=8), 1e6)
    assert model.local_rotary_base == 20_000.0
    scaled = {"rope_parameters": parameters | {"sliding_attention": whole}}
    with pytest.raises(InputError, match="of the local layers") as caught:
        model_from_config(config | scaled)
    assert caught.value.field == "rope_parameters.sliding_attention.rope_type"


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-4b", "minicpm3-4b"])
def test_a_model_with_scaling_is_written_and_read_as_json(name: str):
    model = catalogue_model(name)
    assert Model.model_validate_json(model.model_dump_json()) == model
    assert hash(model) == hash(model.model_copy())


def test_files_of_earlier_versions_name_only_the_kind():
    written = catalogue_model("llama-3.1-8b").model_dump() | {"rotary_scaling": "llama3"}
    assert Model.model_validate(written).rotary_scaling == OtherScaling(name="llama3")


def test_yarn_reaches_beyond_the_length_that_the_file_has():
    config = {
        "model_type": "qwen2",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "max_position_embeddings": 32768,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    }
    assert model_from_config(config).max_context == 131072
    assert model_from_config({**config, "max_position_embeddings": 262144}).max_context == 262144
    del config["rope_scaling"]
    assert model_from_config(config).max_context == 32768
