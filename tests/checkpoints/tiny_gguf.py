"""A tiny Llama GGUF file made to order: any metadata or tensor changed, added or left out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType, GGUFWriter

from partita.checkpoints.protocol import random_parameters
from partita.specs.model import Model

WriteGGUF = Callable[..., Path]
"""`write` below, but for its path."""

TINY = Model(
    name="tiny",
    layers=2,
    d_model=8,
    d_ff=6,
    heads=4,
    kv_heads=2,
    head_dim=4,
    vocabulary=12,
    norm_epsilon=1e-5,
    rotary_base=500.0,
    max_context=64,
)

TINY_METADATA: dict[str, Any] = {
    "llama.block_count": TINY.layers,
    "llama.context_length": 64,
    "llama.embedding_length": TINY.d_model,
    "llama.feed_forward_length": TINY.d_ff,
    "llama.attention.head_count": TINY.heads,
    "llama.attention.head_count_kv": TINY.kv_heads,
    "llama.attention.key_length": TINY.head_dim,
    "llama.attention.layer_norm_rms_epsilon": TINY.norm_epsilon,
    "llama.rope.freq_base": TINY.rotary_base,
    "llama.rope.dimension_count": TINY.head_dim,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [*"abcd1234", "ab", "34", "cdc", "<end>"],
    "tokenizer.ggml.token_type": [1] * 11 + [3],
    "tokenizer.ggml.merges": ["a b", "3 4"],
    "tokenizer.ggml.bos_token_id": 11,
    "tokenizer.ggml.eos_token_id": 11,
    "tokenizer.chat_template": "{{ messages[0]['content'] }}",
}


def stored_tensors(model: Model, parameters: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Our parameters as a Llama GGUF file holds them, element by element from the definition."""
    stored = {"token_embd.weight": parameters["embed"], "output_norm.weight": parameters["final_norm"][0]}
    if not model.tied_embedding:
        stored["output.weight"] = parameters["unembed"]
    half = model.head_dim // 2
    interleaved = [pair + side * half for pair in range(half) for side in range(2)]
    for i in range(model.layers):
        layer = {name: parameters[f"layers.{i}.{name}"] for name in ("q", "kv", "o", "ffn_in", "ffn_out")}
        heads = [(k, g) for k in range(model.kv_heads) for g in range(model.group)]
        key, value = layer["kv"][:, 0], layer["kv"][:, 1]
        tensors = {
            "attn_norm": parameters[f"layers.{i}.norm"][0],
            "ffn_norm": parameters[f"layers.{i}.ffn_norm"][0],
            "attn_q": np.stack([layer["q"][:, k, g, d] for k, g in heads for d in interleaved]),
            "attn_k": np.stack([key[:, k, d] for k in range(model.kv_heads) for d in interleaved]),
            "attn_v": np.stack([value[:, k, d] for k in range(model.kv_heads) for d in range(2 * half)]),
            "attn_output": np.stack([layer["o"][k, g, d] for k, g in heads for d in range(2 * half)], axis=1),
            "ffn_gate": layer["ffn_in"][:, 0].T,
            "ffn_up": layer["ffn_in"][:, 1].T,
            "ffn_down": layer["ffn_out"].T,
        }
        stored |= {f"blk.{i}.{name}.weight": tensor for name, tensor in tensors.items()}
    return stored


def write(
    path: Path,
    changes: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray | None] | None = None,
    architecture: str = "llama",
) -> Path:
    """Writes the tiny model, `changes` to its metadata and `tensors` applied; None removes one."""
    writer = GGUFWriter(path, architecture)
    for key, value in (TINY_METADATA | (changes or {})).items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            writer.add_key_value(key, value, GGUFValueType.get_type(value))
    stored = stored_tensors(TINY, random_parameters(TINY, seed=0)) | (tensors or {})
    for name, tensor in stored.items():
        if tensor is not None:
            writer.add_tensor(name, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
