"""What a GGUF file of architecture "llama" says: its model, and how our parameters lie in its tensors.

Knows the keys, tensor names and shapes of that architecture, nothing about how the container stores them.
Whatever would change the result and is not run here is refused by name.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; tensors: `gguf.constants`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from pydantic import ValidationError

from partita.checkpoints.gguf_metadata import Metadata
from partita.errors import InputError
from partita.program.parameters import Shape
from partita.specs.model import Model
from partita.specs.wording import describe

_EMBED, _UNEMBED = "token_embd.weight", "output.weight"

_UNDERSTOOD = {
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.vocab_size",
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.key_length",
    "llama.attention.value_length",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.rope.freq_base",
    "llama.rope.dimension_count",
    "llama.tensor_data_layout",  # where the converter found the weights; changes nothing
}

# Keys with a value that changes nothing, though any other would: key -> those values.
_WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "llama.expert_count": (0,),
    "llama.expert_used_count": (0,),
    "llama.attention.causal": (True,),
    "llama.attention.sliding_window": (0,),
    "llama.rope.scaling.type": ("none",),
    "llama.rope.scaling.factor": (0, 1),
    "llama.rope.scale_linear": (0, 1),
}

# Why a tensor beyond the known ones is refused: part of its name -> what it is.
_REASONS = {
    "rope_freqs": "scaled rotary frequencies",
    ".bias": "biases",
    "_exps": "experts",
    "_inp": "experts",
}


def llama_model(metadata: Metadata, tensors: Mapping[str, Shape]) -> Model:
    """The model of a "llama" file, from its metadata, its list of tensors and its file name.

    Raises InputError for a key that is missing or of another type, and for one that is not run here.
    """
    _refuse_unknown_keys(metadata)
    heads = metadata.integer("llama.attention.head_count", least=1)
    width = metadata.integer("llama.embedding_length", least=1)
    head_dim = metadata.integer("llama.attention.key_length", width // heads, least=1)
    for key in ("llama.rope.dimension_count", "llama.attention.value_length"):
        if metadata.integer(key, head_dim) != head_dim:
            raise metadata.wrong(key, f"must equal the head dimension, {head_dim}; other values are not run")
    layers = metadata.integer("llama.block_count", least=1)
    if layers > len(tensors):
        raise metadata.wrong("llama.block_count", f"the file has only {len(tensors)} tensors in all")
    embedding = tensors.get(_EMBED, (0,))
    context = metadata.integer("llama.context_length", 0)
    try:
        return Model(
            name=metadata.path.stem,
            layers=layers,
            d_model=width,
            d_ff=metadata.integer("llama.feed_forward_length", least=1),
            heads=heads,
            kv_heads=metadata.integer("llama.attention.head_count_kv", heads, least=1),
            head_dim=head_dim,
            vocabulary=metadata.integer("llama.vocab_size", embedding[0], least=1),
            norm_epsilon=metadata.number("llama.attention.layer_norm_rms_epsilon"),
            rotary_base=metadata.number("llama.rope.freq_base", 10_000.0),
            tied_embedding=_UNEMBED not in tensors,
            max_context=context or None,
        )
    except ValidationError as error:
        raise InputError("model", str(metadata.path), f"its metadata do not fit: {describe(error)}") from None


def _refuse_unknown_keys(metadata: Metadata) -> None:
    unscaled = metadata.get("llama.rope.scaling.type") == "none"
    for key in metadata.keys("llama."):
        if key in _UNDERSTOOD or (unscaled and key.startswith("llama.rope.scaling.")):
            continue
        allowed = _WITHOUT_EFFECT.get(key)
        if allowed is None:
            raise metadata.wrong(
                key, "may change the model's results and is not run here; use a file without it"
            )
        if metadata.get(key) not in allowed:
            values = " or ".join(str(value) for value in allowed)
            raise metadata.wrong(key, f"is not run here; only {values} is")


@dataclass(frozen=True)
class Source:
    """Where one parameter comes from: the tensors that hold it, and how they become it."""

    tensors: dict[str, Shape]  # GGUF name -> row-major shape it must have there
    convert: Callable[..., np.ndarray]  # takes the tensors in that order


def llama_sources(model: Model) -> dict[str, Source]:
    """The source of every parameter of the model, by our name for it."""
    e = model.d_model
    sources = {
        "embed": Source({_EMBED: (model.vocabulary, e)}, _same),
        "final_norm": Source({"output_norm.weight": (e,)}, _one_vector),
    }
    if not model.tied_embedding:
        sources["unembed"] = Source({_UNEMBED: (model.vocabulary, e)}, _same)
    for i in range(model.layers):
        for name, source in _layer_sources(model, f"blk.{i}.").items():
            sources[f"layers.{i}.{name}"] = source
    return sources


def _layer_sources(model: Model, at: str) -> dict[str, Source]:
    e, f, d = model.d_model, model.d_ff, model.head_dim
    k, g = model.kv_heads, model.group
    queries, keys = (model.heads * d, e), (k * d, e)

    def query(stored: np.ndarray) -> np.ndarray:
        return _half_split(stored, k * g, d).reshape(k, g, d, e).transpose(3, 0, 1, 2)

    def key_value(key: np.ndarray, value: np.ndarray) -> np.ndarray:
        pair = np.stack([_half_split(key, k, d), value.reshape(k, d, e)])
        return pair.transpose(3, 0, 1, 2)

    def output(stored: np.ndarray) -> np.ndarray:
        return stored.reshape(e, k, g, d).transpose(1, 2, 3, 0)

    return {
        "norm": Source({at + "attn_norm.weight": (e,)}, _one_vector),
        "ffn_norm": Source({at + "ffn_norm.weight": (e,)}, _one_vector),
        "q": Source({at + "attn_q.weight": queries}, query),
        "kv": Source({at + "attn_k.weight": keys, at + "attn_v.weight": keys}, key_value),
        "o": Source({at + "attn_output.weight": (e, model.heads * d)}, output),
        "ffn_in": Source({at + "ffn_gate.weight": (f, e), at + "ffn_up.weight": (f, e)}, _inputs_last),
        "ffn_out": Source({at + "ffn_down.weight": (e, f)}, np.transpose),
    }


def _half_split(stored: np.ndarray, heads: int, d: int) -> np.ndarray:
    """[heads D, E] with rotary pairs (2d, 2d + 1), as GGUF keeps them -> [heads, D, E] with (d, d + D/2)."""
    pairs = stored.reshape(heads, d // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(heads, d, -1)


def _inputs_last(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return np.stack([gate.T, up.T], axis=1)


def _one_vector(stored: np.ndarray) -> np.ndarray:
    return stored[None]


def _same(stored: np.ndarray) -> np.ndarray:
    return stored


def check_tensors(metadata: Metadata, sources: Mapping[str, Source], tensors: Mapping[str, Shape]) -> None:
    """Raises one InputError for every missing, extra or mis-shaped tensor together."""
    expected = {name: shape for source in sources.values() for name, shape in source.tensors.items()}
    extra = [name for name in tensors if name not in expected]
    reasons = sorted({reason for part, reason in _REASONS.items() if any(part in name for name in extra)})
    why = f" ({', '.join(reasons)})" if reasons else ""
    misshapen = [
        f"{name} ({tensors[name]}, expected {shape})"
        for name, shape in expected.items()
        if tensors.get(name, shape) != shape
    ]
    problems = [
        _some("lacks", [name for name in expected if name not in tensors]),
        _some("has other shapes than its metadata give for", misshapen),
        _some(f"holds what is not run here{why}:", [repr(name) for name in extra]),
    ]
    if any(problems):
        message = "; ".join(problem for problem in problems if problem)
        raise InputError(
            "model", str(metadata.path), f"{message}; give a Llama file with exactly its weights"
        )


def _some(what: str, names: list[str]) -> str:
    if not names:
        return ""
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{what} {', '.join(f'{name:.80}' for name in names[:3])}{rest}"
