"""Dense models with latent attention: MiniCPM3, and DeepSeek's form where no layer has experts."""

from __future__ import annotations

from typing import Any

from partita.errors import InputError
from partita.specs.hugging_face.family import SIZES, Config, Family, false
from partita.specs.hugging_face.llama import KNOWN, common
from partita.specs.hugging_face.positions import Rope, rotary
from partita.specs.model import Latent

_RANKS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_NEEDED = (*SIZES, "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
_NO_BIAS = (false("attention_bias", "latent attention here has no biases"),)
_EXPERTS = (
    *("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size"),
    *("moe_layer_freq", "first_k_dense_replace", "ep_size", "routed_scaling_factor", "n_group"),
    *("topk_group", "topk_method", "norm_topk_prob", "scoring_func", "aux_loss_alpha", "seq_aux"),
)
_DEEPSEEK = (*KNOWN, *_EXPERTS, "rope_interleave", "qk_head_dim")


def _latent(config: Config) -> dict[str, Any]:
    d_model, heads = config["hidden_size"], config["num_attention_heads"]
    nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    if rope % 2:
        raise InputError("qk_rope_head_dim", rope, "must be even for rotary positions")
    if config.get("num_key_value_heads", heads) != heads:
        message = f"must equal num_attention_heads ({heads}) in latent attention"
        raise InputError("num_key_value_heads", config["num_key_value_heads"], message)
    if "v_head_dim" not in config and d_model % heads:
        message = f"must be a multiple of num_attention_heads ({heads}), or v_head_dim be given"
        raise InputError("hidden_size", d_model, message)
    latent = Latent(
        kv_rank=config["kv_lora_rank"],
        query_rank=config.get("q_lora_rank"),
        nope_dim=nope,
        rope_dim=rope,
        value_dim=config.get("v_head_dim", d_model // heads),
    )
    fields = common({**config, "head_dim": rope})
    return fields | rotary(config, Rope(partial=True)) | {"head_dim": nope + rope, "latent": latent}


def _minicpm3(config: Config) -> dict[str, Any]:
    fields = _latent(config)
    return fields | {
        "tied_embedding": config.get("tie_word_embeddings", True),
        "embedding_scale": config.get("scale_emb", 1.0),
        "residual_scale": config.get("scale_depth", 1.0) / fields["layers"] ** 0.5,
        "logit_scale": config.get("dim_model_base", 1) / fields["d_model"],
    }


def _mixture(config: Config) -> None:
    experts, dense = config.get("n_routed_experts"), config.get("first_k_dense_replace", 0)
    layers = config.get("num_hidden_layers")
    if experts and not (isinstance(dense, int) and isinstance(layers, int) and dense >= layers):
        raise InputError("n_routed_experts", experts, "a mixture of experts is not supported in config.json")


FAMILIES = {
    "minicpm3": Family(
        _minicpm3,
        needed=_NEEDED,
        counts=(*_RANKS, "dim_model_base"),
        numbers=("scale_emb", "scale_depth"),
        accepted=_NO_BIAS,
        understood=KNOWN,
    ),
    "deepseek_v2": Family(
        _latent,
        needed=_NEEDED,
        counts=_RANKS,
        absent={"n_routed_experts": 64},
        mixture=_mixture,
        accepted=_NO_BIAS,
        understood=_DEEPSEEK,
    ),
    "deepseek_v3": Family(
        _latent,
        needed=_NEEDED,
        counts=_RANKS,
        absent={"n_routed_experts": 256},
        mixture=_mixture,
        accepted=_NO_BIAS,
        understood=_DEEPSEEK,
    ),
}
