"""GPT-2, GPT-NeoX and Falcon: LayerNorm, biases, one input matrix in the feed-forward."""

from __future__ import annotations

from typing import Any

from partita.errors import InputError
from partita.specs.hugging_face.family import (
    Accepted,
    Config,
    Family,
    divided,
    false,
    kv_heads,
    plain,
    refuse,
)
from partita.specs.hugging_face.positions import ROTARY_FIELDS, Rope, rotary


def _gpt2(config: Config) -> dict[str, Any]:
    d_model, heads = config["n_embd"], config["n_head"]
    if d_model % heads:
        raise InputError("n_embd", d_model, f"must be a multiple of n_head ({heads})")
    return {
        "layers": config["n_layer"],
        "d_model": d_model,
        "d_ff": config.get("n_inner", 4 * d_model),
        "heads": heads,
        "kv_heads": heads,
        "head_dim": d_model // heads,
        "vocabulary": config["vocab_size"],
        "norm": "layernorm",
        "norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
        "feed_forward": plain({"activation_function": "gelu_new", **config}, "activation_function"),
        "positions": "learned",
        "tied_embedding": config.get("tie_word_embeddings", True),
        "max_context": config["n_positions"],
        "qkv_bias": True,
        "output_bias": True,
        "ffn_bias": True,
    }


_NEOX_ROPE = Rope(base_name="rotary_emb_base", part=0.25, part_name="rotary_pct", partial=True, length=2048)
"""A `rope_theta` or `partial_rotary_factor` beside `rope_parameters` says nothing in this family."""


def _gpt_neox(config: Config) -> dict[str, Any]:
    d_model, heads = config["hidden_size"], config["num_attention_heads"]
    bias, parallel = config.get("attention_bias", True), config.get("use_parallel_residual", True)
    return rotary(config, _NEOX_ROPE) | {
        "layers": config["num_hidden_layers"],
        "d_model": d_model,
        "d_ff": config["intermediate_size"],
        "heads": heads,
        "kv_heads": heads,
        "head_dim": divided(d_model, heads),
        "vocabulary": config["vocab_size"],
        "block": "parallel" if parallel else "serial",
        "separate_norms": parallel,
        "norm": "layernorm",
        "norm_epsilon": config.get("layer_norm_eps", 1e-5),
        "feed_forward": plain(config),
        "tied_embedding": config.get("tie_word_embeddings", False),
        "max_context": config.get("max_position_embeddings", 2048),
        "qkv_bias": bias,
        "output_bias": bias,
        "ffn_bias": True,
    }


def _falcon(config: Config) -> dict[str, Any]:
    d_model, heads = config["hidden_size"], config["num_attention_heads"]
    newer, bias = config.get("new_decoder_architecture", False), config.get("bias", False)
    parallel = newer or config.get("parallel_attn", True)
    own = {} if newer or not config.get("multi_query", True) else {"num_kv_heads": 1}
    norms = config.get("num_ln_in_parallel_attn", 2 if newer else 1)
    if norms > (2 if newer else 1):
        words = "1 or 2 with new_decoder_architecture, else 1"
        raise refuse("num_ln_in_parallel_attn", norms, words)
    if newer and not config.get("parallel_attn", True):
        raise refuse("parallel_attn", False, "true with new_decoder_architecture")
    if config.get("alibi", False):  # its bias is scaled with the scores
        own_positions = {"positions": "alibi", "alibi_scale": divided(d_model, heads) ** -0.5}
    else:
        own_positions = rotary(config, Rope(length=2048))
    return own_positions | {
        "layers": config["num_hidden_layers"],
        "d_model": d_model,
        "d_ff": config.get("ffn_hidden_size", 4 * d_model),
        "heads": heads,
        "kv_heads": kv_heads({**config, **own}, heads, "num_kv_heads"),
        "head_dim": divided(d_model, heads),
        "vocabulary": config["vocab_size"],
        "block": "parallel" if parallel else "serial",
        "separate_norms": parallel and norms == 2,
        "norm": "layernorm",
        "norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
        "feed_forward": plain(config, "activation"),
        "tied_embedding": config.get("tie_word_embeddings", True),
        "max_context": config.get("max_position_embeddings", 2048),
        "qkv_bias": bias,
        "output_bias": bias,
        "ffn_bias": bias,
    }


def _falcon_names(config: Config) -> Config:
    """The fields under their usual names; the first files of the family have other names for some sizes."""
    names = {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_head_kv": "num_kv_heads"}
    names["n_embed"] = "hidden_size"
    return {names.get(name, name): value for name, value in config.items()}


def _gpt2_names(config: Config) -> Config:
    """The fields under their own names; sizes may have the names that they have in other families."""
    names = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
    names["max_position_embeddings"] = "n_positions"
    return {names.get(name, name): value for name, value in config.items()}


FAMILIES = {
    "gpt2": Family(
        _gpt2,
        needed=("n_embd", "n_head", "n_layer", "vocab_size"),
        counts=("n_inner", "n_positions", "n_ctx"),
        numbers=("layer_norm_epsilon",),
        absent={"n_positions": 1024},
        unwrap=_gpt2_names,
        accepted=(
            Accepted("scale_attn_weights", bool, "true; scores are scaled by the head size"),
            false("scale_attn_by_inverse_layer_idx", "scores are not scaled by the layer"),
        ),
        understood=("activation_function",),
    ),
    "gpt_neox": Family(
        _gpt_neox,
        numbers=("layer_norm_eps", "rotary_pct", "rotary_emb_base"),
        flags=("use_parallel_residual", "attention_bias"),
        understood=("hidden_act", *ROTARY_FIELDS),
    ),
    "falcon": Family(
        _falcon,
        needed=("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"),
        counts=("num_kv_heads", "ffn_hidden_size", "num_ln_in_parallel_attn"),
        numbers=("layer_norm_epsilon",),
        flags=("new_decoder_architecture", "bias", "parallel_attn", "multi_query", "alibi"),
        unwrap=_falcon_names,
        understood=("activation", *ROTARY_FIELDS),
    ),
}
