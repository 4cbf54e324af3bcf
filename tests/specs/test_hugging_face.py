"""Reading `config.json`: the models we know, the defaults, and every refusal."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InputError
from partita.specs import catalogue_model, model_from_config

SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}
MISTRAL_7B: dict[str, Any] = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "vocab_size": 32768,
}
NEEDED = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)


def _without(*fields: str) -> dict[str, Any]:
    return {field: value for field, value in SMOLLM2.items() if field not in fields}


def test_a_file_gives_the_model_of_the_catalogue(tmp_path: Path):
    folder = tmp_path / "smollm2-135m"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMOLLM2))
    assert model_from_config(folder / "config.json") == catalogue_model("smollm2-135m")


def test_mistral_is_read_where_attention_reaches_the_whole_context():
    model = model_from_config(MISTRAL_7B, name="mistral-7b")
    assert (model.kv_heads, model.head_dim, model.tied_embedding) == (8, 128, False)
    assert model.parameters == 7_248_023_552  # Mistral-7B-v0.3, as published in its safetensors index


def test_absent_fields_take_the_defaults_of_the_llama_form():
    optional = set(SMOLLM2) - set(NEEDED)
    model = model_from_config(_without(*optional))
    assert (model.kv_heads, model.head_dim, model.norm_epsilon) == (9, 64, 1e-6)
    assert (model.rotary_base, model.tied_embedding, model.max_context) == (10_000.0, False, None)


def test_null_key_value_heads_mean_multihead_and_absent_ones_eight_for_mistral():
    assert model_from_config(MISTRAL_7B | {"num_key_value_heads": None}).kv_heads == 32
    absent = {field: value for field, value in MISTRAL_7B.items() if field != "num_key_value_heads"}
    assert model_from_config(absent).kv_heads == 8


def test_the_rotary_base_is_found_in_newer_configurations_too():
    newer = _without("rope_theta") | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
    assert model_from_config(newer).rotary_base == 5e5


def test_a_head_size_of_its_own_is_kept():
    assert model_from_config(SMOLLM2 | {"head_dim": 128}).head_dim == 128


def test_the_name_is_the_given_one_or_what_the_configuration_says():
    assert model_from_config(SMOLLM2, name="mine").name == "mine"
    assert model_from_config(SMOLLM2 | {"_name_or_path": "org/its-name"}).name == "org/its-name"
    assert model_from_config(SMOLLM2).name == "llama"


def test_all_missing_fields_are_named_at_once():
    with pytest.raises(InputError, match=r"config\.json needs hidden_size, vocab_size$"):
        model_from_config(_without("hidden_size", "vocab_size"))
    with pytest.raises(InputError, match=f"config.json needs {', '.join(NEEDED)}$"):
        model_from_config({})


@pytest.mark.parametrize("field", NEEDED)
def test_each_needed_field_is_missed_by_name(tmp_path: Path, field: str):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(_without(field)))
    with pytest.raises(InputError, match=f"config.json needs {field}$") as caught:
        model_from_config(path)
    assert (caught.value.field, caught.value.value) == (field, str(path))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", "576"),
        ("hidden_size", 576.0),
        ("num_hidden_layers", True),
        ("vocab_size", 0),
        ("num_key_value_heads", -3),
        ("head_dim", [64]),
        ("max_position_embeddings", "8k"),
        ("rms_norm_eps", "1e-5"),
        ("rms_norm_eps", 0),
        ("rope_theta", float("inf")),
        ("tie_word_embeddings", "yes"),
        ("rope_parameters", [1]),
        ("rope_parameters", {"rope_theta": "10000"}),
    ],
)
def test_a_field_of_a_wrong_type_is_named_with_what_it_must_be(field: str, value: Any):
    with pytest.raises(InputError, match=r"must be .* in config\.json") as caught:
        model_from_config(SMOLLM2 | {field: value})
    assert (caught.value.field, caught.value.value) == (field, repr(value))


def test_all_fields_of_a_wrong_type_are_named_at_once():
    with pytest.raises(InputError) as caught:
        model_from_config(
            SMOLLM2 | {"hidden_size": "576", "vocab_size": None, "rope_theta": -1} | {"vocab_size": 1.5}
        )
    assert caught.value.field == "hidden_size, vocab_size, rope_theta"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_act", "gelu"),
        ("hidden_act", ["silu"]),
        ("sliding_window", 4096),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("layer_types", ["sliding_attention"] * 30),
        ("layer_types", ["linear_attention"] * 30),
        ("layer_types", "full_attention"),
        ("partial_rotary_factor", 1.5),
        ("is_encoder_decoder", True),
    ],
)
def test_what_would_change_the_result_is_refused_by_name(field: str, value: Any):
    with pytest.raises(InputError, match="not supported in config") as caught:
        model_from_config(SMOLLM2 | {field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"attention_bias": True}, {"qkv_bias": True, "output_bias": True}),
        ({"mlp_bias": True}, {"ffn_bias": True}),
        ({"hidden_act": "gelu_pytorch_tanh"}, {"feed_forward": "geglu"}),
    ],
)
def test_features_of_the_llama_form_are_read(changes: dict[str, Any], fields: dict[str, Any]):
    plain, model = model_from_config(SMOLLM2), model_from_config(SMOLLM2 | changes)
    assert model == plain.model_copy(update=fields)
    assert model != plain
    assert model.beyond_engine == ()


def test_a_mistral_window_is_read_also_where_it_is_only_the_default():
    absent = {field: value for field, value in MISTRAL_7B.items() if field != "sliding_window"}
    for config in (absent, MISTRAL_7B | {"sliding_window": 4096}):
        model = model_from_config(config)
        assert (model.window, model.global_layers) == (4096, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_local_experts", 8), ("moe_intermediate_size", 512), ("n_routed_experts", 64)],
)
def test_a_mixture_of_experts_is_refused_by_name(field: str, value: int):
    with pytest.raises(InputError, match=f"{field}: {value}: a mixture of experts is not supported"):
        model_from_config(SMOLLM2 | {field: value})
    with pytest.raises(InputError, match="model_type: qwen3_moe: a mixture of experts is not supported"):
        model_from_config(SMOLLM2 | {"model_type": "qwen3_moe"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_lora_rank", 512),
        ("mamba_d_state_size", 16),
        ("num_nextn_predict_layers", 1),
        ("block_ffn_dims", [1, 2]),
        ("altup_num_inputs", 4),
        ("use_qk_norm", True),
        ("qk_layernorm", True),
        ("clip_qkv", 8.0),
        ("attention_multiplier", 0.5),
        ("embedding_multiplier", 12.0),
        ("residual_multiplier", 0.22),
        ("logits_scaling", 8.0),
        ("no_rope_layers", [1, 1, 0, 1]),
        ("attn_temperature_tuning", True),
        ("layer_norm_type", "low_precision_layernorm"),
        ("per_layer_config", {"0": {"head_dim": 8}}),
        ("dual_chunk_attention_config", {"chunk_size": 8192}),
    ],
)
def test_a_field_nobody_understands_is_refused_by_name(field: str, value: Any):
    with pytest.raises(InputError, match="may change the model and is not understood") as caught:
        model_from_config(SMOLLM2 | {field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    "usual",
    [
        {"bos_token_id": 1, "eos_token_id": [1, 2], "pad_token_id": 0, "head_dim": None},
        {"initializer_range": 0.02, "attention_dropout": 0.0, "use_cache": True, "pretraining_tp": 1},
        {"torch_dtype": "bfloat16", "transformers_version": "4.40.0", "architectures": ["LlamaForCausalLM"]},
        {"num_experts": 0, "kv_lora_rank": None, "auto_map": {"AutoModel": "a.B"}, "num_labels": 2},
        {
            "use_qk_norm": False,
            "clip_qkv": None,
            "logits_scaling": 0,
            "no_rope_layers": [],
            "pruned_heads": {},
        },
        {"_attn_implementation_autoset": True, "transformers.js_config": {"dtype": "q4"}, "top_p": 0.9},
        {"attn_pdrop": 0.1, "hidden_dropout_prob": 0.1, "resid_dropout": 0.1, "unsloth_version": "1"},
    ],
)
def test_what_configurations_usually_also_hold_is_passed_over(usual: dict[str, Any]):
    assert model_from_config(SMOLLM2 | usual) == model_from_config(SMOLLM2)


@pytest.mark.parametrize(
    "plain",
    [
        {"rope_scaling": {"rope_type": "default"}},
        {"rope_scaling": {"type": "default"}},
        {"layer_types": ["full_attention"] * 30},
        {"quantization_config": None},
        {"quantization_config": {"quant_method": "awq", "bits": 4}},  # a plan has formats of its own
        {"partial_rotary_factor": 1.0},
        # these the family's code in transformers never looks at
        {"partial_rotary_factor": 0.5},
        {"rope_parameters": {"rope_theta": 1e5, "partial_rotary_factor": 0.5}},
        {"rope_interleaved": True},
    ],
)
def test_the_same_fields_are_read_where_they_change_nothing(plain: dict[str, Any]):
    assert model_from_config(SMOLLM2 | plain) == model_from_config(SMOLLM2)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_key_value_heads": 2}, "num_key_value_heads"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "hidden_size"),
        ({"head_dim": 63}, "head_dim"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused_by_name(change: dict[str, Any], field: str):
    with pytest.raises(InputError) as caught:
        model_from_config(SMOLLM2 | change)
    assert caught.value.field == field


def test_an_unknown_kind_of_model_is_named_with_those_supported():
    with pytest.raises(InputError, match=r"model_type: bert: not supported; .*supported: llama, mistral"):
        model_from_config({"model_type": "bert", "hidden_size": 768})
    with pytest.raises(InputError, match=r"did you mean mistral\?"):
        model_from_config({"model_type": "mistrall"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not valid JSON: .*line 1"),
        (b"", "is not valid JSON"),
        (b"[1, 2]", "must hold one JSON object"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not valid JSON"),
        (b"\xfa\xfb\xfc", "not a text file in UTF-8"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        model_from_config(path)
    assert (caught.value.field, caught.value.value) == ("model", str(path))


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        model_from_config(tmp_path / "config.json")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


_MORE = ("head_dim", "rope_parameters", "layer_types", "sliding_window", "partial_rotary_factor", "kv_rank")


@given(st.dictionaries(st.sampled_from([*SMOLLM2, *_MORE]), _JSON))
def test_any_values_are_read_or_refused_in_words(changes: dict[str, Any]):
    with suppress(InputError):
        assert model_from_config(SMOLLM2 | changes).parameters > 0
