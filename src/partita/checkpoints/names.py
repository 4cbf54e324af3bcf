"""How each family of models calls and lays out its tensors, in Hugging Face folders and in GGUF files.

The tables give for each parameter of `partita.specs.parameters` the stored tensors it is made of, in lines
that `sources.py` explains.

Sources: the modules of the transformers library and the tensors it saves; `gguf.constants.TENSOR_NAMES` and
llama.cpp's convert_hf_to_gguf.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from partita.checkpoints.sources import Names


def _layer_norm(name: str) -> list[str]:
    return [f"{name}.weight E", f"{name}.bias E"]


def _with(names: Names, block: Mapping[str, Sequence[str]]) -> Names:
    """The same names, but for these parameters of a block."""
    return replace(names, block={**names.block, **block})


# -- Hugging Face folders ---------------------------------------------------------------------------------

_ROTARY_TABLES = ("*.rotary_emb.inv_freq", "*.attention.rotary_emb.inv_freq")


def _fused_by_head(attention: str) -> dict[str, list[str]]:
    """A block's matrices and biases where queries, keys and values of each head lie in one matrix."""
    return {
        "q": [f"{attention}.query_key_value.weight KTD E"],
        "kv": [f"{attention}.query_key_value.weight KTD E"],
        "q_bias": [f"{attention}.query_key_value.bias KTD"],
        "kv_bias": [f"{attention}.query_key_value.bias KTD"],
        "o": [f"{attention}.dense.weight E KGD"],
        "o_bias": [f"{attention}.dense.bias E"],
        "ffn_in": ["mlp.dense_h_to_4h.weight F E"],
        "ffn_in_bias": ["mlp.dense_h_to_4h.bias F"],
        "ffn_out": ["mlp.dense_4h_to_h.weight E F"],
        "ffn_out_bias": ["mlp.dense_4h_to_h.bias E"],
    }


_LLAMA = Names(
    outside={
        "embed": ["embed_tokens.weight V E"],
        "final_norm": ["norm.weight E"],
        "unembed": ["lm_head.weight V E"],
    },
    layer="layers.{i}.",
    block={
        "norm": ["input_layernorm.weight E"],
        "ffn_norm": ["post_attention_layernorm.weight E"],
        "q": ["self_attn.q_proj.weight KGD E"],
        "kv": ["self_attn.k_proj.weight KD E", "self_attn.v_proj.weight KD E"],
        "o": ["self_attn.o_proj.weight E KGD"],
        "q_bias": ["self_attn.q_proj.bias KGD"],
        "kv_bias": ["self_attn.k_proj.bias KD", "self_attn.v_proj.bias KD"],
        "o_bias": ["self_attn.o_proj.bias E"],
        "q_norm": ["self_attn.q_norm.weight D"],
        "k_norm": ["self_attn.k_norm.weight D"],
        "ffn_in": ["mlp.gate_proj.weight F E", "mlp.up_proj.weight F E"],
        "ffn_out": ["mlp.down_proj.weight E F"],
        "ffn_in_bias": ["mlp.gate_proj.bias F", "mlp.up_proj.bias F"],
        "ffn_out_bias": ["mlp.down_proj.bias E"],
    },
    prefixes=("model.", ""),
    harmless=_ROTARY_TABLES,
)

_GEMMA = Names(
    outside={**_LLAMA.outside, "final_norm": ["norm.weight E +1"]},
    layer=_LLAMA.layer,
    block={
        **_LLAMA.block,
        "norm": ["input_layernorm.weight E +1"],
        "post_norm": ["post_attention_layernorm.weight E +1"],
        "ffn_norm": ["pre_feedforward_layernorm.weight E +1"],
        "ffn_post_norm": ["post_feedforward_layernorm.weight E +1"],
        "q_norm": ["self_attn.q_norm.weight D +1"],
        "k_norm": ["self_attn.k_norm.weight D +1"],
    },
    prefixes=("model.", "language_model.model.", "model.language_model.", ""),
    harmless=(*_ROTARY_TABLES, "*vision_tower.*", "*multi_modal_projector.*"),
)

_GPT_NEOX = Names(
    outside={
        "embed": ["embed_in.weight V E"],
        "final_norm": _layer_norm("final_layer_norm"),
        "unembed": ["embed_out.weight V E"],
    },
    layer="layers.{i}.",
    block={
        "norm": _layer_norm("input_layernorm"),
        "ffn_norm": _layer_norm("post_attention_layernorm"),
        **_fused_by_head("attention"),
    },
    prefixes=("gpt_neox.", ""),
    harmless=(*_ROTARY_TABLES, "*.attention.bias", "*.attention.masked_bias"),
)

_GPT2 = Names(
    outside={
        "embed": ["wte.weight V E"],
        "positions": ["wpe.weight S E"],
        "final_norm": _layer_norm("ln_f"),
        "unembed": ["lm_head.weight V E"],
    },
    layer="h.{i}.",
    block={
        "norm": _layer_norm("ln_1"),
        "ffn_norm": _layer_norm("ln_2"),
        "q": ["attn.c_attn.weight E [KGD]+KD+KD"],
        "kv": ["attn.c_attn.weight E KGD+[KD]+KD", "attn.c_attn.weight E KGD+KD+[KD]"],
        "q_bias": ["attn.c_attn.bias [KGD]+KD+KD"],
        "kv_bias": ["attn.c_attn.bias KGD+[KD]+KD", "attn.c_attn.bias KGD+KD+[KD]"],
        "o": ["attn.c_proj.weight KGD E"],
        "o_bias": ["attn.c_proj.bias E"],
        "ffn_in": ["mlp.c_fc.weight E F"],
        "ffn_in_bias": ["mlp.c_fc.bias F"],
        "ffn_out": ["mlp.c_proj.weight F E"],
        "ffn_out_bias": ["mlp.c_proj.bias E"],
    },
    prefixes=("transformer.", ""),
    harmless=("*.attn.bias", "*.attn.masked_bias"),
)

_FALCON = Names(
    outside={
        "embed": ["word_embeddings.weight V E"],
        "final_norm": _layer_norm("ln_f"),
        "unembed": ["lm_head.weight V E"],
    },
    layer="h.{i}.",
    block={
        "norm": _layer_norm("input_layernorm"),
        "ffn_norm": _layer_norm("post_attention_layernorm"),
        **_fused_by_head("self_attention"),
    },
    separate_norms={"norm": _layer_norm("ln_attn"), "ffn_norm": _layer_norm("ln_mlp")},
    prefixes=("transformer.", ""),
    harmless=_ROTARY_TABLES,
)

HUGGING_FACE: Mapping[str, Names] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _LLAMA),
    **dict.fromkeys(("gemma2", "gemma3", "gemma3_text"), _GEMMA),
    "gpt_neox": _GPT_NEOX,
    "gpt2": _GPT2,
    "falcon": _FALCON,
}
"""The names in a Hugging Face folder, by the `model_type` of its config.json."""

# -- GGUF files -------------------------------------------------------------------------------------------
# Norms of Gemma have their 1 added already, fused queries, keys and values lie one after the other, and
# "llama" alone has rotary pairs side by side.

_GGUF_GATED = Names(
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

_GGUF_LLAMA = _with(
    _GGUF_GATED, {"q": ["attn_q.weight KGd E"], "kv": ["attn_k.weight Kd E", "attn_v.weight KD E"]}
)

_GGUF_GEMMA = _with(
    _GGUF_GATED, {"post_norm": ["post_attention_norm.weight E"], "ffn_post_norm": ["post_ffw_norm.weight E"]}
)

_GGUF_FUSED = Names(
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

_GGUF_FALCON = replace(
    _GGUF_FUSED,
    separate_norms={"norm": _layer_norm("attn_norm_2"), "ffn_norm": _layer_norm("attn_norm")},
)

GGUF: Mapping[str, Names] = {
    "llama": _GGUF_LLAMA,
    **dict.fromkeys(("qwen2", "qwen3"), _GGUF_GATED),
    **dict.fromkeys(("gemma2", "gemma3"), _GGUF_GEMMA),
    **dict.fromkeys(("gpt2", "gptneox"), _GGUF_FUSED),
    "falcon": _GGUF_FALCON,
}
"""The names in a GGUF file, by its `general.architecture`."""
