"""A tiny model of each family with random weights, as transformers saves it to a folder.

For the tests with the `oracle` marker: torch and transformers are imported only when a model is made. Sizes
are odd, so that no two dims have the same length by chance, and what each family may have is switched on:
grouped queries, windows shorter than a prompt, softcaps, scaled rotary positions. No token ends a text, so
that greedy generation runs as long as it is asked to. Every folder is smaller than 1 MB. To compare logits,
load them with the `attention_of` their kind.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCABULARY = 151
_NO_END = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_LLAMA: dict[str, Any] = {
    **_NO_END,
    "vocab_size": VOCABULARY,
    "hidden_size": 42,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
_ROPE = {"rope_type": "default", "rope_theta": 500.0}


def _save(kind: str, folder: Path, **fields: Any) -> Path:
    """Makes a model of this kind from the fields of its configuration, and saves it in float32."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    config = transformers.AutoConfig.for_model(kind, **fields)
    torch.manual_seed(sum(map(ord, kind)))
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    fill(model, kind)
    model.save_pretrained(folder)
    return folder


def fill(model: Any, kind: str) -> None:
    """Random weights far enough from their usual values to matter, for a model of this kind."""
    import torch  # pyright: ignore[reportMissingImports]

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape)
            if parameter.ndim == 1:  # norms and biases, far enough from 1 and 0 to matter
                is_scale = name.endswith("weight") and not kind.startswith("gemma")
                values = values * 0.2 + (1 if is_scale else 0)
            else:
                values /= parameter.shape[-1] ** 0.5
            if parameter is model.get_input_embeddings().weight:  # or the token just read always wins
                values *= 0.3
            parameter.copy_(values)


def attention_of(kind: str) -> str:
    """The implementation of attention in transformers to compare with: `sdpa` leaves out Gemma 2's softcap of
    scores, `eager` adds Falcon's ALiBi twice (in version 5.24: to the scores, and in their mask)."""
    return "sdpa" if kind.startswith("falcon") else "eager"


def llama2(folder: Path) -> Path:
    """As many key/value heads as query heads, positions interpolated linearly."""
    rope = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
    return _save("llama", folder, **{**_LLAMA, "num_key_value_heads": 6}, rope_parameters=rope)


def llama3(folder: Path) -> Path:
    """Grouped queries, a tied embedding, and Llama 3.1's scaling with all three of its ranges in the head."""
    rope = {
        **{"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0},
        **{"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    }
    return _save("llama", folder, **{**_LLAMA, "tie_word_embeddings": True}, rope_parameters=rope)


def llama_yarn(folder: Path) -> Path:
    """Positions scaled as YaRN has it, and biases everywhere."""
    rope = {
        **{"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0},
        "original_max_position_embeddings": 64,
    }
    return _save("llama", folder, **_LLAMA, attention_bias=True, mlp_bias=True, rope_parameters=rope)


def llama_dynamic(folder: Path) -> Path:
    """A base that grows with the sequence, once it is longer than 20 tokens."""
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 6.0}
    return _save("llama", folder, **{**_LLAMA, "max_position_embeddings": 20}, rope_parameters=rope)


def llama_longrope(folder: Path) -> Path:
    """Short factors up to 20 tokens, long ones beyond."""
    rope = {
        **{"rope_type": "longrope", "rope_theta": 10_000.0, "original_max_position_embeddings": 20},
        **{"short_factor": [1.0, 1.1, 1.2, 1.4, 1.7], "long_factor": [1.5, 2.5, 4.0, 7.0, 12.0]},
    }
    return _save("llama", folder, **_LLAMA, rope_parameters=rope)


def qwen2_windows(folder: Path) -> Path:
    """The last two of three layers attend to a window, the first to everything."""
    windows = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    return _save("qwen2", folder, **_LLAMA, **windows, rope_parameters=_ROPE)


def mistral(folder: Path) -> Path:
    """Every layer attends to a window of 5."""
    return _save("mistral", folder, **_LLAMA, sliding_window=5, rope_parameters=_ROPE)


def qwen2(folder: Path) -> Path:
    """Biases of queries, keys and values."""
    return _save("qwen2", folder, **{**_LLAMA, "tie_word_embeddings": True}, rope_parameters=_ROPE)


def qwen3(folder: Path) -> Path:
    """Norms of each head's queries and keys."""
    return _save("qwen3", folder, **_LLAMA, rope_parameters=_ROPE)


_GEMMA: dict[str, Any] = {
    **_LLAMA,
    "num_hidden_layers": 4,
    "tie_word_embeddings": True,
    "sliding_window": 5,
    "query_pre_attn_scalar": 14,
}


def gemma2(folder: Path) -> Path:
    """Softcaps low enough to bend, every second layer global."""
    caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
    return _save("gemma2", folder, **_GEMMA, **caps, rope_parameters=_ROPE)


def gemma3(folder: Path) -> Path:
    """Local layers with a rotary base of their own, global ones scaled, every third layer global."""
    kinds = ["full_attention" if i % 3 == 2 else "sliding_attention" for i in range(4)]
    rope = {
        "full_attention": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    }
    return _save("gemma3_text", folder, **_GEMMA, layer_types=kinds, rope_parameters=rope)


_NEOX: dict[str, Any] = {
    **_NO_END,
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}


def gpt_neox(folder: Path) -> Path:
    """Parallel blocks with two norms, a quarter of each head turned."""
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25}
    return _save("gpt_neox", folder, **_NEOX, rope_parameters=rope)


def gpt_neox_serial(folder: Path) -> Path:
    """Serial blocks, half of each head turned."""
    rope = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    return _save("gpt_neox", folder, **_NEOX, use_parallel_residual=False, rope_parameters=rope)


def gpt2(folder: Path) -> Path:
    """Learned positions, biases, an activation with tanh."""
    sizes = {"n_embd": 42, "n_layer": 3, "n_head": 3, "n_inner": 52, "n_positions": 128}
    return _save("gpt2", folder, **_NO_END, vocab_size=VOCABULARY, **sizes)


_FALCON: dict[str, Any] = {
    **_NO_END,
    "vocab_size": VOCABULARY,
    "hidden_size": 60,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    "alibi": False,
}


def falcon(folder: Path) -> Path:
    """Falcon-7B's form: parallel blocks with one norm, one key/value head for all queries."""
    return _save("falcon", folder, **_FALCON, multi_query=True, parallel_attn=True, bias=False)


def falcon_alibi(folder: Path) -> Path:
    """Falcon-RW's form: serial blocks with biases, ALiBi. Eight heads, so that the slopes, which transformers
    rounds to bf16, are powers of 2."""
    sizes = {**_FALCON, "hidden_size": 48, "num_attention_heads": 8, "alibi": True}
    return _save("falcon", folder, **sizes, multi_query=False, parallel_attn=False, bias=True)


def falcon_grouped(folder: Path) -> Path:
    """Falcon-40B's form: parallel blocks with two norms, two key/value heads."""
    return _save("falcon", folder, **_FALCON, new_decoder_architecture=True, num_kv_heads=2, bias=False)


FAMILIES: dict[str, Callable[[Path], Path]] = {
    function.__name__: function
    for function in (
        *(llama2, llama3, llama_yarn, mistral, qwen2, qwen3, gemma2, gemma3),
        *(gpt_neox, gpt_neox_serial, gpt2, falcon, falcon_grouped, falcon_alibi),
        *(llama_dynamic, llama_longrope, qwen2_windows),
    )
}
"""Functions that save a tiny model of the family to a folder and return it, by the family's name."""
