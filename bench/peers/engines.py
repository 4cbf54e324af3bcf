"""The engines that run beside Partita's: how each is called, and which modules its Python must have.

Knows no timing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from partita.specs import Model


@dataclass(frozen=True)
class Peer:
    """An engine in one format.

    arguments: of its runner, for a model and a GGUF file of it; None where it cannot do without a file.
    """

    name: str
    runner: str
    modules: tuple[str, ...]
    arguments: Callable[[Model, Path | None], list[str] | None]


def _transformers(dtype: str) -> Callable[[Model, Path | None], list[str] | None]:
    return lambda model, _: ["--dtype", dtype, "--sizes", json.dumps(llama_config(model))]


def _llama_cpp(format: str) -> Callable[[Model, Path | None], list[str] | None]:
    return lambda _, file: None if file is None else ["--gguf", str(file), "--format", format]


def llama_config(model: Model) -> dict[str, object]:
    """A model's sizes as `transformers.LlamaConfig` names them."""
    return {
        "vocab_size": model.vocabulary,
        "hidden_size": model.d_model,
        "intermediate_size": model.d_ff,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "rms_norm_eps": model.norm_epsilon,
        "tie_word_embeddings": model.tied_embedding,
        "max_position_embeddings": model.max_context,
    }


PEERS = (
    Peer("transformers f32", "run_transformers.py", ("torch", "transformers"), _transformers("float32")),
    Peer("transformers bf16", "run_transformers.py", ("torch", "transformers"), _transformers("bfloat16")),
    Peer("llama.cpp f32", "run_llama_cpp.py", ("llama_cpp",), _llama_cpp("f32")),
    Peer("llama.cpp 8 bit", "run_llama_cpp.py", ("llama_cpp",), _llama_cpp("q8_0")),
    Peer("llama.cpp 4 bit", "run_llama_cpp.py", ("llama_cpp",), _llama_cpp("as it is")),
)
"""The GGUF file is 4-bit (Q4_1) as it comes."""
