"""Tiny folders in Hugging Face form, written byte by byte from the definition of safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tests.checkpoints import stored_forms as forms

from partita.checkpoints.protocol import random_parameters
from partita.specs.model import Model

_FORMATS = {
    "float32": "F32",
    "float16": "F16",
    "float64": "F64",
    "bfloat16": "BF16",
    "int8": "I8",
    "uint8": "U8",
}

_LLAMA: dict[str, Any] = {
    **{"hidden_size": 12, "intermediate_size": 14, "num_hidden_layers": 3, "num_attention_heads": 6},
    **{"num_key_value_heads": 2, "head_dim": 4, "vocab_size": 17, "rms_norm_eps": 1e-5},
    **{"max_position_embeddings": 64, "rope_theta": 500.0, "tie_word_embeddings": False},
}
_TIED = {**_LLAMA, "tie_word_embeddings": True}
_GEMMA = {**_TIED, "sliding_window": 8, "query_pre_attn_scalar": 4}
_FALCON: dict[str, Any] = {
    **{"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 6, "vocab_size": 17},
    "max_position_embeddings": 64,
}
CONFIGS: dict[str, tuple[dict[str, Any], Model]] = {
    "llama": ({"model_type": "llama", **_LLAMA}, forms.LLAMA),
    "mistral": ({"model_type": "mistral", **_LLAMA, "sliding_window": None}, forms.LLAMA),
    "qwen2": ({"model_type": "qwen2", **_TIED}, forms.QWEN2),
    "qwen3": ({"model_type": "qwen3", **_LLAMA}, forms.QWEN3),
    "gemma2": (
        {
            **{"model_type": "gemma2", **_GEMMA},
            **{"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
        },
        forms.GEMMA2,
    ),
    "gemma3": ({"model_type": "gemma3_text", **_GEMMA, "rope_local_base_freq": 100.0}, forms.GEMMA3),
    "gpt_neox": (
        {
            **{"model_type": "gpt_neox", "hidden_size": 12, "intermediate_size": 14, "num_hidden_layers": 3},
            **{"num_attention_heads": 3, "vocab_size": 17, "max_position_embeddings": 64, "rotary_pct": 0.5},
        },
        forms.GPT_NEOX,
    ),
    "gpt2": (
        {
            **{"model_type": "gpt2", "n_embd": 12, "n_inner": 14, "n_layer": 3, "n_head": 6},
            **{"vocab_size": 17, "n_positions": 64},
        },
        forms.GPT2,
    ),
    "falcon": ({"model_type": "falcon", **_FALCON}, forms.FALCON),
    "falcon_grouped": (
        {"model_type": "falcon", **_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
        forms.FALCON_GROUPED,
    ),
}
"""A config.json and the model that it describes, by family."""


def stored(family: str, seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Random parameters of the family's tiny model by our names, and the tensors of its files."""
    config, model = CONFIGS[family]
    parameters = random_parameters(model, seed)
    return parameters, forms.hf_tensors(config["model_type"], model, parameters)


def safetensors_bytes(tensors: Mapping[str, np.ndarray]) -> bytes:
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = np.ascontiguousarray(tensor).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {
            "dtype": _FORMATS[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], files: int = 1) -> Path:
    """A folder of one file, or of several with an index."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if files == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
        return folder
    places = {}
    for i in range(files):
        name = f"model-{i + 1:05}-of-{files:05}.safetensors"
        mine = {key: tensors[key] for key in list(tensors)[i::files]}
        (folder / name).write_bytes(safetensors_bytes(mine))
        places |= dict.fromkeys(mine, name)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder
