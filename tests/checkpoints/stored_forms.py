"""Our parameters as files of each family hold them, row by row from the definitions of those families.

Shares no code with the tables under test. Names are those of Hugging Face folders or those of GGUF files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from partita.specs.model import Model

Tensors = dict[str, np.ndarray]

_SIZES = {
    **{"name": "tiny", "layers": 3, "d_model": 12, "d_ff": 14, "heads": 6, "kv_heads": 2, "head_dim": 4},
    **{"vocabulary": 17, "norm_epsilon": 1e-5, "max_context": 64},
}
_BIASES = {"qkv_bias": True, "output_bias": True, "ffn_bias": True}
_GPT = {"norm": "layernorm", "feed_forward": "exact_gelu", "kv_heads": 6, "head_dim": 2}


def _model(**fields: object) -> Model:
    return Model.model_validate({**_SIZES, **fields})


LLAMA = _model(tied_embedding=False, rotary_base=500.0)
QWEN2 = _model(qkv_bias=True, rotary_base=500.0)
QWEN3 = _model(qk_norm=True, tied_embedding=False, rotary_base=500.0)
_GEMMA = {
    **{"feed_forward": "geglu", "post_norms": True, "window": 8, "embedding_scale": 12**0.5},
    **{"rotary_base": 500.0},
}
GEMMA2 = _model(**_GEMMA, global_period=2, attention_softcap=5.0, logit_softcap=3.0)
GEMMA3 = _model(**_GEMMA, global_period=6, qk_norm=True, local_rotary_base=100.0)
GPT_NEOX = _model(
    **{**_GPT, "kv_heads": 3, "heads": 3, "head_dim": 4},
    **_BIASES,
    **{"block": "parallel", "separate_norms": True, "rotary_fraction": 0.5, "tied_embedding": False},
)
GPT2 = _model(**{**_GPT, "feed_forward": "gelu"}, **_BIASES, positions="learned")
FALCON = _model(**{**_GPT, "kv_heads": 1}, block="parallel", d_ff=48)
FALCON_GROUPED = _model(**{**_GPT, "kv_heads": 2}, block="parallel", separate_norms=True, d_ff=48)


def hf_tensors(family: str, model: Model, parameters: Mapping[str, np.ndarray]) -> Tensors:
    """The tensors of a folder of this model_type."""
    forms = {"gpt_neox": _hf_gpt_neox, "gpt2": _hf_gpt2, "falcon": _hf_falcon}
    return forms.get(family, _hf_llama)(model, parameters, one=family.startswith("gemma"))


def _hf_llama(model: Model, parameters: Mapping[str, np.ndarray], one: bool) -> Tensors:
    less = 1 if one else 0  # Gemma multiplies by 1 + what it stores
    stored = {
        "model.embed_tokens.weight": parameters["embed"],
        "model.norm.weight": parameters["final_norm"][0] - less,
    }
    if not model.tied_embedding:
        stored["lm_head.weight"] = parameters["unembed"]
    norms = {"norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    if model.post_norms:
        norms |= {"post_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm"}
        norms |= {"ffn_post_norm": "post_feedforward_layernorm"}
    norms |= {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"} if model.qk_norm else {}
    for start, layer in _layers(model, parameters, "model.layers.{}."):
        tensors = {f"{theirs}.weight": layer[ours][0] - less for ours, theirs in norms.items()}
        for side, bias in ((".weight", ""), (".bias", "_bias")):
            if f"q{bias}" in layer:
                queries, keys, values = _heads(layer, bias)
                tensors |= {
                    f"self_attn.q_proj{side}": np.concatenate([head for group in queries for head in group]),
                    f"self_attn.k_proj{side}": np.concatenate(keys),
                    f"self_attn.v_proj{side}": np.concatenate(values),
                }
        tensors |= {
            "self_attn.o_proj.weight": _output(layer),
            "mlp.gate_proj.weight": layer["ffn_in"][:, 0].T,
            "mlp.up_proj.weight": layer["ffn_in"][:, 1].T,
            "mlp.down_proj.weight": layer["ffn_out"].T,
        }
        stored |= {start + name: tensor for name, tensor in tensors.items()}
    return stored


def _hf_gpt_neox(model: Model, parameters: Mapping[str, np.ndarray], one: bool) -> Tensors:
    stored = {
        "gpt_neox.embed_in.weight": parameters["embed"],
        "embed_out.weight": parameters["unembed"],
        **_norm("gpt_neox.final_layer_norm", parameters["final_norm"]),
    }
    for start, layer in _layers(model, parameters, "gpt_neox.layers.{}."):
        stored |= _norm(start + "input_layernorm", layer["norm"])
        stored |= _norm(start + "post_attention_layernorm", layer["ffn_norm"])
        stored |= _rest(start, layer, "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
        for side, bias in ((".weight", ""), (".bias", "_bias")):
            stored[f"{start}attention.query_key_value{side}"] = _by_head(layer, bias)
    return stored


def _hf_falcon(model: Model, parameters: Mapping[str, np.ndarray], one: bool) -> Tensors:
    stored = {
        "transformer.word_embeddings.weight": parameters["embed"],
        **_norm("transformer.ln_f", parameters["final_norm"]),
    }
    for start, layer in _layers(model, parameters, "transformer.h.{}."):
        if model.separate_norms:
            stored |= _norm(start + "ln_attn", layer["norm"]) | _norm(start + "ln_mlp", layer["ffn_norm"])
        else:
            stored |= _norm(start + "input_layernorm", layer["norm"])
        stored |= _rest(start, layer, "self_attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
        stored[start + "self_attention.query_key_value.weight"] = _by_head(layer, "")
    return stored


def _hf_gpt2(model: Model, parameters: Mapping[str, np.ndarray], one: bool) -> Tensors:
    """Its matrices are [inputs, outputs]."""
    stored = {
        "transformer.wte.weight": parameters["embed"],
        "transformer.wpe.weight": parameters["positions"],
        **_norm("transformer.ln_f", parameters["final_norm"]),
    }
    for start, layer in _layers(model, parameters, "transformer.h.{}."):
        stored |= _norm(start + "ln_1", layer["norm"]) | _norm(start + "ln_2", layer["ffn_norm"])
        rest = _rest(start, layer, "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
        stored |= {name: tensor.T for name, tensor in rest.items()}
        stored[start + "attn.c_attn.weight"] = _one_after_another(layer, "").T
        stored[start + "attn.c_attn.bias"] = _one_after_another(layer, "_bias")
    return stored


def gguf_tensors(model: Model, parameters: Mapping[str, np.ndarray], architecture: str) -> Tensors:
    """The tensors of a GGUF file of this architecture, but for "llama", which `tiny_gguf.py` has."""
    stored = {"token_embd.weight": parameters["embed"]}
    stored |= _gguf_norm("output_norm", parameters["final_norm"])
    if "unembed" in parameters:
        stored["output.weight"] = parameters["unembed"]
    if "positions" in parameters:
        stored["position_embd.weight"] = parameters["positions"]
    names = {"norm": "attn_norm", "ffn_norm": "ffn_norm", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm"}
    names |= {"post_norm": "post_attention_norm", "ffn_post_norm": "post_ffw_norm"}
    if architecture == "falcon" and model.separate_norms:
        names |= {"norm": "attn_norm_2", "ffn_norm": "attn_norm"}
    for start, layer in _layers(model, parameters, "blk.{}."):
        for ours, theirs in names.items():
            stored |= _gguf_norm(start + theirs, layer[ours]) if ours in layer else {}
        fused = architecture in ("gpt2", "gptneox", "falcon")
        for side, bias in ((".weight", ""), (".bias", "_bias")):
            if f"q{bias}" in layer and fused:
                stored[f"{start}attn_qkv{side}"] = _one_after_another(layer, bias)
            elif f"q{bias}" in layer:
                queries, keys, values = _heads(layer, bias)
                stored[f"{start}attn_q{side}"] = np.concatenate([head for group in queries for head in group])
                stored[f"{start}attn_k{side}"] = np.concatenate(keys)
                stored[f"{start}attn_v{side}"] = np.concatenate(values)
        if fused:
            stored |= _rest(start, layer, "attn_output", "ffn_up", "ffn_down")
        else:
            stored[start + "attn_output.weight"] = _output(layer)
            stored[start + "ffn_gate.weight"] = layer["ffn_in"][:, 0].T
            stored[start + "ffn_up.weight"] = layer["ffn_in"][:, 1].T
            stored[start + "ffn_down.weight"] = layer["ffn_out"].T
    return stored


def _layers(
    model: Model, parameters: Mapping[str, np.ndarray], start: str
) -> Iterator[tuple[str, Mapping[str, np.ndarray]]]:
    for i in range(model.layers):
        at = f"layers.{i}."
        yield (
            start.format(i),
            {name.removeprefix(at): value for name, value in parameters.items() if name.startswith(at)},
        )


def _norm(name: str, vectors: np.ndarray) -> Tensors:
    return {f"{name}.weight": vectors[0], f"{name}.bias": vectors[1]}


def _gguf_norm(name: str, vectors: np.ndarray) -> Tensors:
    return {f"{name}.{side}": vector for side, vector in zip(("weight", "bias"), vectors, strict=False)}


def _heads(
    layer: Mapping[str, np.ndarray], bias: str
) -> tuple[list[list[np.ndarray]], list[np.ndarray], list[np.ndarray]]:
    """Rows [D, E] (of biases [D]): queries by key/value head and group, keys and values by head."""
    q, kv = layer[f"q{bias}"], layer[f"kv{bias}"]
    if not bias:
        q, kv = np.moveaxis(q, 0, -1), np.moveaxis(kv, 0, -1)
    queries = [[q[k, g] for g in range(q.shape[1])] for k in range(q.shape[0])]
    return queries, list(kv[0]), list(kv[1])


def _by_head(layer: Mapping[str, np.ndarray], bias: str) -> np.ndarray:
    """The queries, the key and the value of each key/value head in turn."""
    queries, keys, values = _heads(layer, bias)
    return np.concatenate([row for k, group in enumerate(queries) for row in (*group, keys[k], values[k])])


def _one_after_another(layer: Mapping[str, np.ndarray], bias: str) -> np.ndarray:
    """All queries, then all keys, then all values."""
    queries, keys, values = _heads(layer, bias)
    return np.concatenate([*(head for group in queries for head in group), *keys, *values])


def _output(layer: Mapping[str, np.ndarray]) -> np.ndarray:
    """[E, H D]."""
    o = layer["o"]
    return np.concatenate([o[k, g] for k in range(o.shape[0]) for g in range(o.shape[1])]).T


def _rest(start: str, layer: Mapping[str, np.ndarray], o: str, first: str, last: str) -> Tensors:
    """The output projection and an ungated feed-forward, [outputs, inputs], with the biases there are."""
    stored = {
        f"{start}{o}.weight": _output(layer),
        f"{start}{first}.weight": layer["ffn_in"][:, 0].T,
        f"{start}{last}.weight": layer["ffn_out"].T,
    }
    if "o_bias" in layer:
        stored[f"{start}{o}.bias"] = layer["o_bias"]
    if "ffn_in_bias" in layer:
        stored[f"{start}{first}.bias"] = layer["ffn_in_bias"][0]
        stored[f"{start}{last}.bias"] = layer["ffn_out_bias"]
    return stored
