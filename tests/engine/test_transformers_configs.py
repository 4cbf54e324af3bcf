"""What a config.json means, field by field, against transformers: the same raw file read by both.

Every case is a family's sizes and a few more fields, as files have had them over the years. The model that
transformers makes of it is saved, and its config.json put back as it was: the logits of a text must be those
of the engine, and where the length of a text decides its positions, greedy tokens too. What transformers
cannot run must be refused in one line.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.families import VOCABULARY, attention_of, fill

from partita.checkpoints.folder import open_folder
from partita.engine.engine import Engine
from partita.errors import InputError
from partita.program.positions import by_length
from partita.sharding import Mesh, parse_layout

PROMPT, STEPS = 20, 16
"""Tokens read at once, beyond the window of 5 and (but for a few) the original lengths; tokens generated."""
_SIZES: dict[str, Any] = {
    **{"hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "vocab_size": VOCABULARY, "eos_token_id": None, "bos_token_id": None},
    **{"pad_token_id": None, "max_position_embeddings": 64},
}
_FUSED = {name: value for name, value in _SIZES.items() if name != "num_key_value_heads"}
BASES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2"), _SIZES),
    "qwen3": _SIZES | {"head_dim": 8},
    **dict.fromkeys(("gemma2", "gemma3_text"), _SIZES | {"head_dim": 8, "sliding_window": 5}),
    "gpt_neox": _FUSED | {"num_attention_heads": 2},  # a quarter of a head of 16 turns
    "falcon": {name: value for name, value in _FUSED.items() if name != "intermediate_size"},
    "gpt2": {
        **{"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY},
        **{"eos_token_id": None, "bos_token_id": None},
    },
}
_PAIRS = {"gpt_neox": 2}  # that turn by default; 4 elsewhere
_LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def _lists(kind: str) -> dict[str, Any]:
    pairs = _PAIRS.get(kind, 4)
    return {
        **{"rope_type": "longrope", "original_max_position_embeddings": 28},
        **{"short_factor": [1.0, 1.1, 1.2, 1.4][:pairs], "long_factor": [1.5, 3.0, 5.0, 9.0][:pairs]},
    }


def _rotary(kind: str, whole: bool) -> Iterator[dict[str, Any]]:
    """Forms of rotary positions, in the older and the newer fields; only some but for the `whole` of them."""
    yield {"rope_theta": 500.0}
    yield {"partial_rotary_factor": 0.5}
    yield {"rope_theta": 500.0, "rope_parameters": {"rope_type": "default", "rope_theta": 90.0}}
    yield {"rope_parameters": {"rope_theta": 90.0, "partial_rotary_factor": 0.5}}
    yield {"rope_theta": 500.0, "rope_scaling": None, "rope_interleaved": True}
    yield {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_parameters": {"rope_theta": 90.0}}
    yield {"rope_scaling": {"type": "linear", "factor": 4.0}, "partial_rotary_factor": 0.5}
    yield {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}, "max_position_embeddings": 12}
    if not whole:
        return
    scalings = (
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "dynamic", "factor": 3.0},
        {"rope_type": "llama3", **_LLAMA3, "original_max_position_embeddings": 16},
        {"rope_type": "llama3", **_LLAMA3},
        _YARN,
        {"rope_type": "yarn", "factor": 4.0},
        _YARN | {"attn_factor": 3.0, "beta_fast": 4.0, "beta_slow": 0.5},
        _YARN | {"attention_factor": 0.6, "truncate": False},
        _YARN | {"mscale": 0.7, "mscale_all_dim": 1.5, "beta_fast": 0, "beta_slow": None},
        _YARN | {"factor": None, "finetuned": True},
        _lists(kind),
        _lists(kind) | {"factor": 3.0, "original_max_position_embeddings": 8},
        _lists(kind) | {"attention_factor": 0.8},
    )
    for i, scaling in enumerate(scalings):
        if i % 3:
            yield {"rope_scaling": scaling, "rope_theta": 500.0}
        if i % 3 < 2:
            yield {"rope_parameters": scaling | {"rope_theta": 500.0}}
    yield {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 26}
    yield {"rope_scaling": _YARN, "original_max_position_embeddings": 32}
    yield {"rope_scaling": _lists(kind), "original_max_position_embeddings": 32}


_FOUR = {"num_hidden_layers": 4}
_F, _S = "full_attention", "sliding_attention"
_GEMMA3_ROPE = {_F: {"rope_type": "linear", "factor": 4.0}, _S: {"rope_type": "default", "rope_theta": 90.0}}
_BIAS = [{"attention_bias": True}, {"attention_bias": False}]
_WINDOWS = [
    {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": first} for first in (0, 1, 2)
]
OWN: dict[str, list[dict[str, Any]]] = {
    "llama": [
        *_BIAS,
        {"rms_norm_eps": 0.1},
        {"mlp_bias": True},
        {"num_key_value_heads": None},
        {"head_dim": 6},
    ],
    "mistral": [
        {"sliding_window": 5, "rms_norm_eps": 0.1},
        {"sliding_window": None},
        {**_FOUR, "sliding_window": 5, "layer_types": [_F, _S, _S, _F]},
        {**_FOUR, "sliding_window": 5, "layer_types": [_S, _F, _S, _S]},
    ],
    "qwen2": [
        *_WINDOWS,
        {"sliding_window": 5, "max_window_layers": 1},
        {**_FOUR, "use_sliding_window": True, "sliding_window": 5, "layer_types": [_F, _S, _S, _F]},
        {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0},
    ],
    "qwen3": [*_BIAS, *_WINDOWS, {"use_sliding_window": True, "sliding_window": 5}],
    "gemma2": [
        *_BIAS,
        {**_FOUR, "layer_types": [_F, _S, _S, _F]},
        {"query_pre_attn_scalar": 20, "attn_logit_softcapping": 1.5, "final_logit_softcapping": None},
        {"hidden_activation": "silu", "rms_norm_eps": 0.1},
        {"hidden_act": "silu"},
    ],
    "gemma3_text": [
        *_BIAS,
        {**_FOUR, "layer_types": [_F, _S, _S, _F]},
        {"sliding_window_pattern": 2},
        {"sliding_window_pattern": 3, "rope_local_base_freq": 90.0, "rope_theta": 500.0},
        {"sliding_window_pattern": 2, "rope_parameters": _GEMMA3_ROPE},
        {"sliding_window_pattern": 2, "rope_parameters": _GEMMA3_ROPE, "rope_theta": 500.0},
        {"sliding_window_pattern": 2, "rope_parameters": {_S: {"rope_theta": 90.0}}},
        {
            "sliding_window_pattern": 2,
            "rope_parameters": {_F: _YARN | {"truncate": False, "rope_theta": 90.0}},
        },
        {"sliding_window_pattern": 2, "rope_scaling": _YARN | {"rope_theta": 90.0}, "rope_theta": 500.0},
        {"sliding_window_pattern": 2, "rope_scaling": _YARN, "original_max_position_embeddings": 32},
        {"sliding_window_pattern": 2, "query_pre_attn_scalar": 20, "final_logit_softcapping": 2.0},
    ],
    "gpt_neox": [
        *_BIAS,
        {"rotary_pct": 0.5, "rotary_emb_base": 500},
        {"rotary_pct": 1.0, "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        {"rotary_emb_base": 500, "rope_parameters": {"rope_theta": 90.0}},
        {"use_parallel_residual": False, "hidden_act": "gelu_fast"},
        {"layer_norm_eps": 0.1, "hidden_act": "gelu_new"},
    ],
    "falcon": [
        {"alibi": True},
        {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
        {"multi_query": False},
        {"bias": True, "parallel_attn": False},
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
        {"ffn_hidden_size": 44, "activation": "gelu_pytorch_tanh", "layer_norm_epsilon": 0.1},
    ],
    "gpt2": [
        {"n_inner": 44},
        {"activation_function": "gelu"},
        {"layer_norm_epsilon": 0.1, "n_inner": None},
    ],
}
_EVERYWHERE: list[dict[str, Any]] = [
    {},
    {"tie_word_embeddings": True},
    {"tie_word_embeddings": False},
    {"use_cache": False, "initializer_range": 0.5, "attention_dropout": 0.0},
]
CASES = [
    (kind, changes)
    for kind in BASES
    for changes in itertools.chain(
        _EVERYWHERE,
        _rotary(kind, whole=kind in ("llama", "gemma3_text", "gpt_neox")) if kind != "gpt2" else [],
        OWN[kind],
    )
]


@pytest.fixture(scope="module", autouse=True)
def _quick_to_compile() -> Iterator[None]:
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")  # those of torch and transformers are not ours to mend
@pytest.mark.parametrize(("kind", "changes"), CASES, ids=lambda part: json.dumps(part).replace('"', ""))
def test_a_raw_config_is_read_as_transformers_reads_it(kind: str, changes: dict[str, Any], tmp_path: Path):
    theirs = _theirs(kind, {"model_type": kind, **BASES[kind], **changes}, tmp_path)
    if theirs is None:
        with pytest.raises(InputError) as caught:
            open_folder(tmp_path)
        assert "\n" not in str(caught.value)
        return
    import torch  # pyright: ignore[reportMissingImports]

    text = np.random.default_rng(7).integers(0, VOCABULARY, PROMPT + STEPS).tolist()
    engine = Engine(open_folder(tmp_path), Mesh("x", (1,)), *[parse_layout("ws1d/heads", "x")] * 2)
    if by_length(engine.model) is not None:
        found = engine.generate([text[:PROMPT]], STEPS)[0]
        with torch.no_grad():
            expected = theirs.generate(torch.tensor([text[:PROMPT]]), max_new_tokens=STEPS, do_sample=False)
        assert found == expected[0].tolist()[PROMPT:]
    with torch.no_grad():
        logits = theirs(torch.tensor([text])).logits[0].numpy()
    np.testing.assert_allclose(engine.logits([text])[0], logits, atol=2e-4, rtol=0)


def _theirs(kind: str, config: dict[str, Any], folder: Path) -> Any:
    """What transformers makes of a file, None where it cannot run it; writes the folder, with that file."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    try:
        read = transformers.AutoConfig.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_config(
            read, attn_implementation=attention_of(kind)
        ).eval()
        torch.manual_seed(3)
        fill(model, kind)
        with torch.no_grad():
            model(torch.tensor([[1, 2, 3]]))  # short: of a scaling by length a model keeps the longest it saw
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError):
        return None
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return model
