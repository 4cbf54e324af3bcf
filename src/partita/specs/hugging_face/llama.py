"""The Llama form: serial blocks, RMSNorm, a gated feed-forward, rotary positions. Its fields and its kin."""

from __future__ import annotations

from typing import Any

from partita.specs.hugging_face.family import Accepted, Config, Family, false, gated, head_dim, kv_heads
from partita.specs.hugging_face.positions import (
    ROTARY_FIELDS,
    WINDOW_FIELDS,
    Rope,
    rotary,
    windows,
    windows_above,
)

KNOWN = ("num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_act", *ROTARY_FIELDS)
"""Fields of the whole form that need not be there."""
_QWEN = Rope(length=32_768)
_NO_WINDOW = Accepted("sliding_window", lambda value: value is None, "null; this family has no windows")


def common(config: Config) -> dict[str, Any]:
    """The fields that the whole form shares; attention has no window and no rotary positions yet."""
    d_model, heads = config["hidden_size"], config["num_attention_heads"]
    return {
        "layers": config["num_hidden_layers"],
        "d_model": d_model,
        "d_ff": config["intermediate_size"],
        "heads": heads,
        "kv_heads": kv_heads(config, heads),
        "head_dim": head_dim(config, d_model, heads),
        "vocabulary": config["vocab_size"],
        "norm_epsilon": config.get("rms_norm_eps", 1e-6),
        "feed_forward": gated(config),
        "tied_embedding": config.get("tie_word_embeddings", False),
        "max_context": config.get("max_position_embeddings"),
    }


def _llama(config: Config) -> dict[str, Any]:
    bias = config.get("attention_bias", False)
    biases = {"qkv_bias": bias, "output_bias": bias, "ffn_bias": config.get("mlp_bias", False)}
    return common(config) | biases | rotary(config, Rope(length=2048)) | windows(config)


def _mistral(config: Config) -> dict[str, Any]:
    return common(config) | rotary(config, Rope(length=131_072)) | windows(config)


def _qwen2(config: Config) -> dict[str, Any]:
    return common(config) | {"qkv_bias": True} | rotary(config, _QWEN) | windows_above(config)


def _qwen3(config: Config) -> dict[str, Any]:
    bias = config.get("attention_bias", False)
    extra = {"qkv_bias": bias, "output_bias": bias, "qk_norm": True}
    return common(config) | extra | rotary(config, _QWEN) | windows_above(config)


_BIASES = Accepted(
    "attention_bias", lambda value: value, "true; this family has biases of queries, keys and values"
)
_ABOVE = ("sliding_window", "layer_types", "use_sliding_window", "max_window_layers")
FAMILIES = {
    "llama": Family(
        _llama,
        flags=("attention_bias", "mlp_bias"),
        accepted=(_NO_WINDOW,),
        understood=(*KNOWN, *WINDOW_FIELDS),
    ),
    "mistral": Family(
        _mistral,
        absent={"num_key_value_heads": 8, "sliding_window": 4096},
        accepted=(false("attention_bias", "this family has no biases"),),
        understood=(*KNOWN, "sliding_window", "layer_types"),
    ),
    "qwen2": Family(
        _qwen2,
        absent={"num_key_value_heads": 32, "sliding_window": 4096},
        accepted=(_BIASES,),
        understood=(*KNOWN, *_ABOVE),
    ),
    "qwen3": Family(
        _qwen3,
        flags=("attention_bias",),
        absent={"num_key_value_heads": 32, "sliding_window": 4096, "head_dim": 128},
        understood=(*KNOWN, *_ABOVE),
    ),
}
