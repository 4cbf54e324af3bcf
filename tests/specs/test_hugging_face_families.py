"""The families of `config.json`: each read into the model that the catalogue has, defaults and refusals."""

import json
from typing import Any

import pytest

from partita.errors import InputError
from partita.specs import catalogue_model, model_from_config
from partita.specs.hugging_face import MODEL_TYPES

LLAMA3 = {
    **{"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
    **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
}


def _sizes(hidden: int, inner: int, layers: int, heads: int, kv: int, vocabulary: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocabulary,
    }


# As published, without the fields that say nothing of the model's sizes or results.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-2-70b": {
        "model_type": "llama",
        **_sizes(8192, 28672, 80, 64, 8, 32000),
        **{"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "pretraining_tp": 1},
    },
    "llama-3.1-8b": {
        "model_type": "llama",
        **_sizes(4096, 14336, 32, 32, 8, 128_256),
        **{"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": LLAMA3},
        **{"max_position_embeddings": 131_072, "attention_bias": False, "mlp_bias": False},
    },
    "llama-3.2-1b": {
        "model_type": "llama",
        **_sizes(2048, 8192, 16, 32, 8, 128_256),
        **{
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "head_dim": 64,
            "rope_scaling": LLAMA3 | {"factor": 32.0},
        },
        **{"max_position_embeddings": 131_072, "tie_word_embeddings": True},
    },
    "mistral-7b-v0.1": {
        "model_type": "mistral",
        **_sizes(4096, 14336, 32, 32, 8, 32000),
        **{"rms_norm_eps": 1e-5, "max_position_embeddings": 32768, "sliding_window": 4096},
    },
    "qwen2.5-7b": {
        "model_type": "qwen2",
        **_sizes(3584, 18944, 28, 28, 4, 152_064),
        **{"rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "max_position_embeddings": 32768},
        **{"use_sliding_window": False, "sliding_window": 131_072, "max_window_layers": 28},
    },
    "qwen3-4b": {
        "model_type": "qwen3",
        **_sizes(2560, 9728, 36, 32, 8, 151_936),
        **{"rms_norm_eps": 1e-6, "rope_theta": 1000000, "max_position_embeddings": 40960, "head_dim": 128},
        **{"use_sliding_window": False, "sliding_window": None, "max_window_layers": 36},
        **{"tie_word_embeddings": True, "rope_scaling": None, "attention_bias": False},
    },
    "gemma-2-27b": {
        "model_type": "gemma2",
        **_sizes(4608, 36864, 46, 32, 16, 256_000),
        **{"head_dim": 128, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"},
        **{"query_pre_attn_scalar": 144, "sliding_window": 4096, "cache_implementation": "hybrid"},
        **{"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "rms_norm_eps": 1e-6},
        **{"rope_theta": 10000.0, "max_position_embeddings": 8192},
    },
    "gemma-3-1b": {
        "model_type": "gemma3_text",
        **_sizes(1152, 6912, 26, 4, 1, 262_144),
        **{"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256},
        **{"sliding_window": 512, "sliding_window_pattern": 6, "max_position_embeddings": 32768},
        **{"rope_theta": 1000000, "rope_local_base_freq": 10000, "attn_logit_softcapping": None},
    },
    "gemma-3-27b": {
        "model_type": "gemma3",
        "mm_tokens_per_image": 256,
        "text_config": {
            **{"model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504, "head_dim": 128},
            **{"num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16},
            **{"query_pre_attn_scalar": 168, "sliding_window": 1024},
            **{"rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
        },
        "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27, "model_type": "siglip_vision_model"},
    },
    "gpt2-124m": {
        "model_type": "gpt2",
        **{"n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "n_ctx": 1024},
        **{"vocab_size": 50257, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
    },
    "gpt-neox-20b": {
        "model_type": "gpt_neox",
        **{"hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44, "vocab_size": 50432},
        **{
            "num_attention_heads": 64,
            "hidden_act": "gelu_fast",
            "rotary_pct": 0.25,
            "rotary_emb_base": 10000,
        },
        **{"layer_norm_eps": 1e-5, "max_position_embeddings": 2048, "tie_word_embeddings": False},
    },
    "falcon-7b": {
        "model_type": "falcon",
        **{"hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "vocab_size": 65024},
        **{"multi_query": True, "parallel_attn": True, "bias": False, "alibi": False, "num_kv_heads": 71},
        **{"new_decoder_architecture": False, "layer_norm_epsilon": 1e-5},
    },
    "minicpm3-4b": {
        "model_type": "minicpm3",
        **_sizes(2560, 6400, 62, 40, 40, 73_448),
        **{"q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32},
        **{"rms_norm_eps": 1e-5, "max_position_embeddings": 32768, "rope_scaling": {"type": "longrope"}},
        **{"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_configuration_is_the_model_of_the_catalogue(name: str):
    assert model_from_config(CONFIGS[name], name=name) == catalogue_model(name)


def _read(name: str, **changes: Any):
    return model_from_config(CONFIGS[name] | changes, name=name)


def test_the_form_of_newer_configurations_is_read_too():
    """layer_types and rope_parameters, as the transformers library writes them from version 5 on."""
    types = [("full" if (i + 1) % 6 == 0 else "sliding") + "_attention" for i in range(26)]
    newer = {name: value for name, value in CONFIGS["gemma-3-1b"].items() if not name.startswith("rope_")} | {
        "layer_types": types,
        "sliding_window_pattern": 2,
        "_sliding_window_pattern": 6,
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
    }
    assert model_from_config(newer, name="gemma-3-1b") == catalogue_model("gemma-3-1b")


def test_qwen_has_windows_only_where_its_switch_says_so():
    assert _read("qwen2.5-7b").window is None
    assert _read("qwen2.5-7b", use_sliding_window=True).window is None  # from layer 28 of 28 on
    every = _read("qwen2.5-7b", use_sliding_window=True, max_window_layers=0, sliding_window=4096)
    assert (every.window, every.local_layers) == (4096, 28)
    some = _read("qwen2.5-7b", use_sliding_window=True, max_window_layers=14, sliding_window=4096)
    assert (some.window, some.global_period, some.global_at) == (4096, None, tuple(range(14)))
    assert [some.is_local(layer) for layer in (0, 13, 14, 27)] == [False, False, True, True]
    absent = _read("qwen2.5-7b", use_sliding_window=True, max_window_layers=None, num_hidden_layers=30)
    assert (absent.global_layers, absent.local_layers) == (28, 2)
    assert _read("qwen3-4b", use_sliding_window=True, max_window_layers=0).window is None  # it has none


@pytest.mark.parametrize(
    ("types", "period"),
    [
        ("LLLL LLLL LLLL LLLL LLLL LLLL LLLL LLLL", None),
        ("LG" * 16, 2),
        ("LLLG" * 8, 4),
        ("LLLLLG" * 5 + "LL", 6),
    ],
)
def test_kinds_of_layers_become_a_period(types: str, period: int | None):
    kinds = {"L": "sliding_attention", "G": "full_attention"}
    layers = [kinds[letter] for letter in types.replace(" ", "")]
    model = _read("mistral-7b-v0.1", layer_types=layers)
    assert (model.window, model.global_period) == (4096, period)
    assert model.global_layers == layers.count("full_attention")


@pytest.mark.parametrize("types", ["GL" * 16, "LG" * 15 + "GG", "L" * 31 + "G", "G" * 30 + "LL"])
def test_kinds_of_layers_without_a_period_become_numbers(types: str):
    kinds = {"L": "sliding_attention", "G": "full_attention"}
    model = _read("mistral-7b-v0.1", layer_types=[kinds[letter] for letter in types])
    if types == "L" * 31 + "G":
        assert (model.global_period, model.global_at) == (32, None)  # the one in every 32
    else:
        assert model.global_at == tuple(i for i, letter in enumerate(types) if letter == "G")
    assert ["L" if model.is_local(i) else "G" for i in range(32)] == list(types)
    assert (model.global_layers, model.global_before(16)) == (types.count("G"), types[:16].count("G"))


@pytest.mark.parametrize("types", ["L" * 31, "G" * 33, ""])
def test_kinds_of_more_or_fewer_layers_are_refused(types: str):
    kinds = {"L": "sliding_attention", "G": "full_attention"}
    with pytest.raises(InputError, match=r"layer_types: .* for each layer, 32 in all"):
        _read("mistral-7b-v0.1", layer_types=[kinds[letter] for letter in types])


def test_layers_with_a_window_nobody_gave_are_refused():
    with pytest.raises(InputError, match=r"layer_types: .* or sliding_window be given"):
        _read("mistral-7b-v0.1", sliding_window=None, layer_types=["sliding_attention"] * 32)


def test_falcon_in_its_three_forms():
    newer = {"hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128, "num_kv_heads": 8}
    larger = _read("falcon-7b", new_decoder_architecture=True, **newer)
    assert (larger.kv_heads, larger.block, larger.separate_norms) == (8, "parallel", True)
    assert larger.parameters == 41_303_293_952  # Falcon-40B, its tied table counted once
    serial = _read("falcon-7b", multi_query=False, parallel_attn=False, alibi=True, bias=True)
    assert (serial.kv_heads, serial.block, serial.positions, serial.ffn_bias) == (71, "serial", "alibi", True)
    renamed = {"n_layer": 32, "n_head": 71}
    older = {
        k: v for k, v in CONFIGS["falcon-7b"].items() if k not in ("num_hidden_layers", "num_attention_heads")
    }
    assert model_from_config(older | renamed, name="falcon-7b") == catalogue_model("falcon-7b")


def test_pythia_without_parallel_blocks_is_serial():
    model = _read("gpt-neox-20b", use_parallel_residual=False, hidden_act="gelu")
    assert (model.block, model.separate_norms, model.feed_forward) == ("serial", False, "exact_gelu")
    assert model.parameters == catalogue_model("gpt-neox-20b").parameters


def test_deepseek_is_read_where_no_layer_has_experts():
    shape = {name: CONFIGS["minicpm3-4b"][name] for name in CONFIGS["minicpm3-4b"] if "scale_" not in name}
    del shape["dim_model_base"]
    dense = {"model_type": "deepseek_v3", "v_head_dim": 64, "n_routed_experts": None}
    model = model_from_config(shape | dense | {"q_lora_rank": None, "tie_word_embeddings": True}, name="d")
    assert model.latent is not None
    assert (model.latent.query_rank, model.latent.value_dim, model.head_dim) == (None, 64, 96)
    for experts in ({"n_routed_experts": 256}, {}):
        config = {k: v for k, v in (shape | dense).items() if k != "n_routed_experts"} | experts
        with pytest.raises(InputError, match="n_routed_experts: 256: a mixture of experts is not supported"):
            model_from_config(config)
    published = shape | {"model_type": "deepseek_v3", "n_routed_experts": 256, "num_nextn_predict_layers": 1}
    for field in (
        {"quantization_config": {"quant_method": "fp8"}},
        {"attention_bias": True},
        {"v_head_dim": 0},
    ):
        with pytest.raises(InputError, match="n_routed_experts: 256: a mixture of experts is not supported"):
            model_from_config(published | field)
    first = shape | dense | {"n_routed_experts": 8, "first_k_dense_replace": 62, "moe_intermediate_size": 1}
    assert model_from_config(first).d_ff == 6400


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("gpt2-124m", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("gpt2-124m", {"scale_attn_weights": False}, "scale_attn_weights"),
        ("gpt2-124m", {"add_cross_attention": True}, "add_cross_attention"),
        ("gpt2-124m", {"activation_function": "relu"}, "activation_function"),
        ("gpt2-124m", {"rope_theta": 1e4}, "rope_theta"),
        ("gpt2-124m", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("gpt2-124m", {"n_head": 5}, "n_embd"),
        ("gpt2-124m", {"n_positions": None}, "n_positions"),
        ("gpt-neox-20b", {"rotary_pct": 2.0}, "partial_rotary_factor"),
        ("gpt-neox-20b", {"use_parallel_residual": 1}, "use_parallel_residual"),
        ("gpt-neox-20b", {"head_dim": 128}, "head_dim"),
        ("gpt-neox-20b", {"num_key_value_heads": 8}, "num_key_value_heads"),
        ("gpt-neox-20b", {"hidden_act": "quick_gelu"}, "hidden_act"),
        ("gpt-neox-20b", {"num_attention_heads": 48, "hidden_size": 6096}, "hidden_size"),
        ("gpt-neox-20b", {"num_attention_heads": 60}, "hidden_size"),
        ("falcon-7b", {"new_decoder_architecture": True, "num_kv_heads": 3}, "num_kv_heads"),
        ("falcon-7b", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn"),
        ("falcon-7b", {"new_decoder_architecture": True, "parallel_attn": False}, "parallel_attn"),
        ("falcon-7b", {"activation": "gelu_10"}, "activation"),
        ("falcon-7b", {"hidden_act": "relu"}, "hidden_act"),
        (
            "falcon-7b",
            {"apply_residual_connection_post_layernorm": True},
            "apply_residual_connection_post_layernorm",
        ),
        ("mistral-7b-v0.1", {"attention_bias": True}, "attention_bias"),
        ("mistral-7b-v0.1", {"sliding_window_pattern": 6}, "sliding_window_pattern"),
        ("qwen2.5-7b", {"attention_bias": False}, "attention_bias"),
        ("qwen2.5-7b", {"layer_types": ["sliding_attention"] * 28}, "use_sliding_window"),
        ("gemma-3-1b", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gemma-3-1b", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma-2-27b", {"hidden_activation": "relu"}, "hidden_activation"),
        ("gemma-2-27b", {"query_pre_attn_scalar": None}, "query_pre_attn_scalar"),
        ("gemma-3-27b", {"text_config": None}, "text_config"),
        ("minicpm3-4b", {"num_key_value_heads": 8}, "num_key_value_heads"),
        ("minicpm3-4b", {"qk_rope_head_dim": 31}, "qk_rope_head_dim"),
        ("minicpm3-4b", {"kv_lora_rank": None}, "kv_lora_rank"),
        ("minicpm3-4b", {"hidden_size": 2561}, "hidden_size"),
        ("minicpm3-4b", {"attention_bias": True}, "attention_bias"),
        ("minicpm3-4b", {"num_experts": 8}, "num_experts"),
        ("qwen2.5-7b", {"max_window_layers": -1}, "max_window_layers"),
        ("qwen3-4b", {"rope_scaling": {"rope_type": 3}}, "rope_scaling.rope_type"),
    ],
)
def test_what_a_family_cannot_be_is_refused_by_name(name: str, changes: dict[str, Any], field: str):
    with pytest.raises(InputError) as caught:
        _read(name, **changes)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_sizes_of_gpt2_and_falcon_may_have_the_names_of_other_families():
    names = {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}
    names["n_positions"] = "max_position_embeddings"
    renamed = {names.get(name, name): value for name, value in CONFIGS["gpt2-124m"].items()}
    assert model_from_config(renamed, name="gpt2-124m") == catalogue_model("gpt2-124m")
    older = {k.replace("hidden_size", "n_embed"): value for k, value in CONFIGS["falcon-7b"].items()}
    assert model_from_config(older, name="falcon-7b") == catalogue_model("falcon-7b")


@pytest.mark.parametrize(
    ("name", "field", "kinds"),
    [
        ("gpt2-124m", "activation_function", {"gelu_new": "gelu", "gelu": "exact_gelu"}),
        ("gpt-neox-20b", "hidden_act", {"gelu_fast": "gelu", "gelu_accurate": "gelu", "gelu": "exact_gelu"}),
        ("falcon-7b", "activation", {"gelu": "exact_gelu", "gelu_pytorch_tanh": "gelu"}),
        ("llama-2-70b", "hidden_act", {"swish": "swiglu", "gelu_new": "geglu"}),
        ("gemma-2-27b", "hidden_activation", {"gelu_pytorch_tanh": "geglu", "silu": "swiglu"}),
    ],
)
def test_activations_by_their_names(name: str, field: str, kinds: dict[str, str]):
    for activation, kind in kinds.items():
        assert _read(name, **{field: activation}).feed_forward == kind


def test_gemma_without_an_activation_has_its_own():
    assert _read("gemma-2-27b", hidden_activation=None) == catalogue_model("gemma-2-27b")


@pytest.mark.oracle
@pytest.mark.parametrize(
    "kind", [kind for kind in MODEL_TYPES if kind != "minicpm3" and "deepseek" not in kind]
)
def test_all_that_transformers_writes_of_a_family_is_read(kind: str):
    """Every field that its class has, with its defaults: none may be refused as unknown."""
    config = pytest.importorskip("transformers").AutoConfig.for_model(kind)
    written = json.loads(config.to_json_string(use_diff=False))
    model = model_from_config(written)
    text = config.get_text_config()
    assert (model.layers, model.heads) == (text.num_hidden_layers, text.num_attention_heads)
    assert (model.d_model, model.vocabulary) == (text.hidden_size, text.vocab_size)
