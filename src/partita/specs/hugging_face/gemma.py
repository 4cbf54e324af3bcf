"""Gemma 2 and 3: windows in most layers, norms after each half of a block too, a scaled embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from partita.specs.hugging_face.family import Accepted, Config, Family, false, gated, refuse
from partita.specs.hugging_face.llama import KNOWN, common
from partita.specs.hugging_face.positions import Rope, rotary, rotary_by_layer, windows

_NUMBERS = ("query_pre_attn_scalar", "final_logit_softcapping")
_UNDERSTOOD = (*KNOWN, "hidden_activation", "sliding_window", "layer_types")
_CAUSAL = false("use_bidirectional_attention", "a token sees itself and the past")
_NO_SCORE_CAP = Accepted("attn_logit_softcapping", lambda value: value is None, "null; the family has none")


def _gemma(config: Config, period: int) -> dict[str, Any]:
    fields = common({**config, "hidden_act": "silu"})
    bias, scalar = config.get("attention_bias", False), config["query_pre_attn_scalar"]
    return fields | {
        "feed_forward": gated(config, "hidden_activation", "gelu_pytorch_tanh"),
        "tied_embedding": config.get("tie_word_embeddings", True),
        "qkv_bias": bias,
        "output_bias": bias,
        "post_norms": True,
        "attention_softcap": config.get("attn_logit_softcapping"),
        "logit_softcap": config.get("final_logit_softcapping"),
        "attention_scale": None if scalar == fields["head_dim"] else scalar**-0.5,
        "embedding_scale": fields["d_model"] ** 0.5,
        **windows(config, period),
    }


def _gemma2(config: Config) -> dict[str, Any]:
    return _gemma(config, 2) | rotary(config)


def _gemma3(config: Config) -> dict[str, Any]:
    fields = _gemma(config, config["sliding_window_pattern"])
    turned = rotary_by_layer(config, Rope(base=1_000_000.0, part_name=None), local_base=10_000.0)
    if not fields["window"]:
        del turned["local_rotary_base"]
    return fields | {"qk_norm": True} | turned


def _text(config: Config) -> Config:
    """The fields of the language model, where the model also sees images."""
    inner = config.get("text_config")
    if not isinstance(inner, dict):
        raise refuse("text_config", inner, "an object, the configuration of the language model")
    return {
        "tie_word_embeddings": config.get("tie_word_embeddings", True),
        **inner,
        "model_type": "gemma3_text",
    }


_SHAPE = {"head_dim": 256, "query_pre_attn_scalar": 256, "hidden_activation": "gelu_pytorch_tanh"}
_GEMMA2 = {
    **_SHAPE,
    **{"num_key_value_heads": 4, "sliding_window": 4096, "max_position_embeddings": 8192},
    **{"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
}
_GEMMA3 = {
    **_SHAPE,
    **{"vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4},
    **{"sliding_window": 4096, "sliding_window_pattern": 6, "max_position_embeddings": 131_072},
}
_GEMMA3_TEXT = Family(
    _gemma3,
    counts=("sliding_window_pattern",),
    numbers=(*_NUMBERS, "rope_local_base_freq"),
    flags=("attention_bias",),
    absent=_GEMMA3,
    accepted=(_CAUSAL, _NO_SCORE_CAP),
    understood=_UNDERSTOOD,
)
FAMILIES = {
    "gemma2": Family(
        _gemma2,
        numbers=(*_NUMBERS, "attn_logit_softcapping"),
        flags=("attention_bias",),
        absent=_GEMMA2,
        accepted=(_CAUSAL,),
        understood=_UNDERSTOOD,
    ),
    "gemma3_text": _GEMMA3_TEXT,
    "gemma3": replace(_GEMMA3_TEXT, unwrap=_text),
}
