"""How GGUF files of each architecture call and lay out their tensors, in lines as `sources.py` explains them.

Knows nothing about metadata. What differs from Hugging Face form: norms of Gemma have their 1 added already,
fused queries, keys and values lie one after the other, and "llama" alone has rotary pairs side by side.

Source: `gguf.constants.TENSOR_NAMES` and llama.cpp's convert_hf_to_gguf.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from partita.checkpoints.sources import Names
from partita.specs.model import Model


def _layer_norm(name: str) -> list[str]:
    return [f"{name}.weight E", f"{name}.bias E"]


_GATED = Names(
    outside={
        "embed": ["token_embd.weight V E"],
        "final_norm": ["output_norm.weight E"],
        "unembed": ["output.weight V E"],
    },
    layer="blk.{i}.",
    block={
        "norm": ["attn_norm.weight E"],
        "ffn_norm": ["ffn_norm.weight E"],
        "q": ["attn_q.weight KGD E"],
        "kv": ["attn_k.weight KD E", "attn_v.weight KD E"],
        "o": ["attn_output.weight E KGD"],
        "q_bias": ["attn_q.bias KGD"],
        "kv_bias": ["attn_k.bias KD", "attn_v.bias KD"],
        "q_norm": ["attn_q_norm.weight D"],
        "k_norm": ["attn_k_norm.weight D"],
        "ffn_in": ["ffn_gate.weight F E", "ffn_up.weight F E"],
        "ffn_out": ["ffn_down.weight E F"],
    },
    harmless=["rope_freqs.weight"],
)


def _but(names: Names, block: Mapping[str, Sequence[str]]) -> Names:
    return replace(names, block={**names.block, **block})


_LLAMA = _but(_GATED, {"q": ["attn_q.weight KGd E"], "kv": ["attn_k.weight Kd E", "attn_v.weight KD E"]})
_GEMMA = _but(
    _GATED, {"post_norm": ["post_attention_norm.weight E"], "ffn_post_norm": ["post_ffw_norm.weight E"]}
)
_FUSED = Names(
    outside={
        "embed": ["token_embd.weight V E"],
        "positions": ["position_embd.weight S E"],
        "final_norm": _layer_norm("output_norm"),
        "unembed": ["output.weight V E"],
    },
    layer="blk.{i}.",
    block={
        "norm": _layer_norm("attn_norm"),
        "ffn_norm": _layer_norm("ffn_norm"),
        "q": ["attn_qkv.weight [KGD]+KD+KD E"],
        "kv": ["attn_qkv.weight KGD+[KD]+KD E", "attn_qkv.weight KGD+KD+[KD] E"],
        "q_bias": ["attn_qkv.bias [KGD]+KD+KD"],
        "kv_bias": ["attn_qkv.bias KGD+[KD]+KD", "attn_qkv.bias KGD+KD+[KD]"],
        "o": ["attn_output.weight E KGD"],
        "o_bias": ["attn_output.bias E"],
        "ffn_in": ["ffn_up.weight F E"],
        "ffn_in_bias": ["ffn_up.bias F"],
        "ffn_out": ["ffn_down.weight E F"],
        "ffn_out_bias": ["ffn_down.bias E"],
    },
)

_FALCON_TWO_NORMS = _but(_FUSED, {"norm": _layer_norm("attn_norm_2"), "ffn_norm": _layer_norm("attn_norm")})
_NAMES = {
    "llama": _LLAMA,
    **dict.fromkeys(("qwen2", "qwen3"), _GATED),
    **dict.fromkeys(("gemma2", "gemma3"), _GEMMA),
    **dict.fromkeys(("gpt2", "gptneox", "falcon"), _FUSED),
}


def names_of(architecture: str, model: Model) -> Names:
    """The names of a model's tensors. Where Falcon has two norms, that of attention has the later name."""
    if architecture == "falcon" and model.separate_norms:
        return _FALCON_TWO_NORMS
    return _NAMES[architecture]
