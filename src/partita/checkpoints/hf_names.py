"""How each family calls its tensors in Hugging Face form, by the `model_type` of its config.json.

Each table is of lines as `sources.py` explains them. Knows nothing about files or numbers.

Source: the modules of the transformers library and the tensors it saves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from partita.checkpoints.sources import Names
from partita.specs.model import Model

_ROTARY_TABLES = ("*.rotary_emb.inv_freq", "*.attention.rotary_emb.inv_freq")


def _plain(name: str, dims: str, bias_dims: str) -> tuple[str, str]:
    """Lines of a linear layer's matrix and bias."""
    return f"{name}.weight {dims}", f"{name}.bias {bias_dims}"


def _layer_norm(name: str) -> list[str]:
    return list(_plain(name, "E", "E"))


LLAMA = Names(
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

GEMMA = Names(
    outside={**LLAMA.outside, "final_norm": ["norm.weight E +1"]},
    layer=LLAMA.layer,
    block={
        **LLAMA.block,
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

GPT_NEOX = Names(
    outside={
        "embed": ["embed_in.weight V E"],
        "final_norm": _layer_norm("final_layer_norm"),
        "unembed": ["embed_out.weight V E"],
    },
    layer="layers.{i}.",
    block={
        "norm": _layer_norm("input_layernorm"),
        "ffn_norm": _layer_norm("post_attention_layernorm"),
        "q": ["attention.query_key_value.weight KTD E"],
        "kv": ["attention.query_key_value.weight KTD E"],
        "q_bias": ["attention.query_key_value.bias KTD"],
        "kv_bias": ["attention.query_key_value.bias KTD"],
        "o": ["attention.dense.weight E KGD"],
        "o_bias": ["attention.dense.bias E"],
        "ffn_in": ["mlp.dense_h_to_4h.weight F E"],
        "ffn_in_bias": ["mlp.dense_h_to_4h.bias F"],
        "ffn_out": ["mlp.dense_4h_to_h.weight E F"],
        "ffn_out_bias": ["mlp.dense_4h_to_h.bias E"],
    },
    prefixes=("gpt_neox.", ""),
    harmless=(*_ROTARY_TABLES, "*.attention.bias", "*.attention.masked_bias"),
)

GPT2 = Names(
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


def _falcon(model: Model) -> Names:
    """Its norms have names of their own where attention and feed-forward have one each, side by side."""
    norms = ("ln_attn", "ln_mlp") if model.separate_norms else ("input_layernorm", "post_attention_layernorm")
    return Names(
        outside={
            "embed": ["word_embeddings.weight V E"],
            "final_norm": _layer_norm("ln_f"),
            "unembed": ["lm_head.weight V E"],
        },
        layer="h.{i}.",
        block={
            "norm": _layer_norm(norms[0]),
            "ffn_norm": _layer_norm(norms[1]),
            "q": ["self_attention.query_key_value.weight KTD E"],
            "kv": ["self_attention.query_key_value.weight KTD E"],
            "q_bias": ["self_attention.query_key_value.bias KTD"],
            "kv_bias": ["self_attention.query_key_value.bias KTD"],
            "o": ["self_attention.dense.weight E KGD"],
            "o_bias": ["self_attention.dense.bias E"],
            "ffn_in": ["mlp.dense_h_to_4h.weight F E"],
            "ffn_in_bias": ["mlp.dense_h_to_4h.bias F"],
            "ffn_out": ["mlp.dense_4h_to_h.weight E F"],
            "ffn_out_bias": ["mlp.dense_4h_to_h.bias E"],
        },
        prefixes=("transformer.", ""),
        harmless=_ROTARY_TABLES,
    )


FAMILIES: Mapping[str, Callable[[Model], Names]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), lambda model: LLAMA),
    **dict.fromkeys(("gemma2", "gemma3", "gemma3_text"), lambda model: GEMMA),
    "gpt_neox": lambda model: GPT_NEOX,
    "gpt2": lambda model: GPT2,
    "falcon": _falcon,
}
"""By model_type, the names of a model of the family."""
