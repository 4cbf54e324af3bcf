"""What the metadata of a GGUF file say: its model, by architecture.

Knows the keys of each architecture, nothing about tensors but their names and shapes. Whatever would change
the result and is not run here is refused by name.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; what is no key: llama.cpp's llama-model.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from partita.checkpoints.gguf_metadata import Metadata
from partita.checkpoints.gguf_rotary import UNDERSTOOD as ROTARY_KEYS
from partita.checkpoints.gguf_rotary import rotary_fields
from partita.errors import InputError
from partita.program.parameters import Shape
from partita.specs.model import Model
from partita.specs.wording import describe

_EPSILON = {"rmsnorm": "attention.layer_norm_rms_epsilon", "layernorm": "attention.layer_norm_epsilon"}
_UNDERSTOOD = (
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *_EPSILON.values(),
    "tensor_data_layout",  # where the converter found the weights; changes nothing
)
# Keys with a value that changes nothing, though any other would: key -> those values.
_WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
}

Tensors = Mapping[str, Shape]


@dataclass(frozen=True)
class Architecture:
    """What the models of one architecture have in common, and what else its keys say."""

    fields: Mapping[str, Any]
    """Fields of `Model` that are always so."""
    keys: tuple[str, ...] = ()
    """Further keys that are read."""
    partial_rotary: bool = False
    """Whether positions may turn a part of each head only."""
    more: Callable[[Metadata, str, Mapping[str, Any], Tensors], dict[str, Any]] = field(
        default=lambda metadata, at, sizes, tensors: {}
    )
    """Further fields, from the keys that begin with `at` and the sizes read so far."""


def _gemma(metadata: Metadata, at: str, sizes: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Scores of the largest model are scaled by d_model / heads, of all others by the head's size."""
    largest = sizes["layers"] == layers
    return {
        "embedding_scale": sizes["d_model"] ** 0.5,
        "attention_scale": (sizes["d_model"] // sizes["heads"]) ** -0.5 if largest else None,
        "window": metadata.integer(at + "attention.sliding_window", least=1),
    }


def _gemma2(metadata: Metadata, at: str, sizes: Mapping[str, Any], tensors: Tensors) -> dict[str, Any]:
    caps = {"attention_softcap": "attn_logit_softcapping", "logit_softcap": "final_logit_softcapping"}
    softcaps = {name: metadata.number(at + key) for name, key in caps.items() if at + key in metadata}
    return _gemma(metadata, at, sizes, layers=46) | {"global_period": 2} | softcaps


def _gemma3(metadata: Metadata, at: str, sizes: Mapping[str, Any], tensors: Tensors) -> dict[str, Any]:
    base = metadata.number(at + "rope.freq_base_swa", 10_000.0)
    return _gemma(metadata, at, sizes, layers=62) | {"global_period": 6, "local_rotary_base": base}


def _gptneox(metadata: Metadata, at: str, sizes: Mapping[str, Any], tensors: Tensors) -> dict[str, Any]:
    parallel = metadata.flag(at + "use_parallel_residual", True)
    return {"block": "parallel" if parallel else "serial", "separate_norms": parallel}


def _falcon(metadata: Metadata, at: str, sizes: Mapping[str, Any], tensors: Tensors) -> dict[str, Any]:
    return {"separate_norms": "blk.0.attn_norm_2.weight" in tensors}


_GATED = {"norm": "rmsnorm", "feed_forward": "swiglu"}
_GEMMA = {"norm": "rmsnorm", "feed_forward": "geglu", "post_norms": True}
_LAYER_NORM = {"norm": "layernorm", "feed_forward": "exact_gelu"}
_BIASES = {"qkv_bias": True, "output_bias": True, "ffn_bias": True}
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_WINDOW = "attention.sliding_window"

ARCHITECTURES = {
    "llama": Architecture(_GATED),
    "qwen2": Architecture({**_GATED, "qkv_bias": True}),
    "qwen3": Architecture({**_GATED, "qk_norm": True}),
    "gemma2": Architecture(_GEMMA, (*_CAPS, _WINDOW), more=_gemma2),
    "gemma3": Architecture({**_GEMMA, "qk_norm": True}, (_WINDOW, "rope.freq_base_swa"), more=_gemma3),
    "gpt2": Architecture({**_LAYER_NORM, **_BIASES, "feed_forward": "gelu", "positions": "learned"}),
    "gptneox": Architecture({**_LAYER_NORM, **_BIASES}, ("use_parallel_residual",), True, _gptneox),
    "falcon": Architecture({**_LAYER_NORM, "block": "parallel"}, more=_falcon),
}


def read_model(metadata: Metadata, tensors: Tensors) -> Model:
    """The model of a file, from its metadata, its list of tensors and its file name.

    Raises InputError for an architecture or key that is not run here, and for a key that is missing or of
    another type.
    """
    name = metadata.text("general.architecture")
    if name not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise metadata.wrong("general.architecture", f"not supported; supported are: {supported}")
    if metadata.integer("split.count", 1) > 1:
        message = "a model split over several files is not read; merge it into one"
        raise metadata.wrong("split.count", message)
    architecture, at = ARCHITECTURES[name], f"{name}."
    _refuse_unknown_keys(metadata, at, architecture.keys)
    fields = {**_sizes(metadata, at, tensors, architecture.fields["norm"]), **architecture.fields}
    if fields.get("positions", "rotary") == "rotary":
        fields |= rotary_fields(metadata, at, fields["head_dim"], partial=architecture.partial_rotary)
    fields |= architecture.more(metadata, at, fields, tensors)
    try:
        return Model(name=metadata.path.stem, **fields)
    except ValidationError as error:
        raise InputError("model", str(metadata.path), f"its metadata do not fit: {describe(error)}") from None


def _sizes(metadata: Metadata, at: str, tensors: Tensors, norm: str) -> dict[str, Any]:
    heads = metadata.integer(at + "attention.head_count", least=1)
    width = metadata.integer(at + "embedding_length", least=1)
    head_dim = metadata.integer(at + "attention.key_length", width // heads, least=1)
    if metadata.integer(at + "attention.value_length", head_dim) != head_dim:
        message = f"must equal the head dimension, {head_dim}; other values are not run"
        raise metadata.wrong(at + "attention.value_length", message)
    layers = metadata.integer(at + "block_count", least=1)
    if layers > len(tensors):
        raise metadata.wrong(at + "block_count", f"the file has only {len(tensors)} tensors in all")
    embedding = tensors.get("token_embd.weight", (0,))
    return {
        "layers": layers,
        "d_model": width,
        "d_ff": metadata.integer(at + "feed_forward_length", least=1),
        "heads": heads,
        "kv_heads": metadata.integer(at + "attention.head_count_kv", heads, least=1),
        "head_dim": head_dim,
        "vocabulary": metadata.integer(at + "vocab_size", embedding[0], least=1),
        "norm_epsilon": metadata.number(at + _EPSILON[norm]),
        "tied_embedding": "output.weight" not in tensors,
        "max_context": metadata.integer(at + "context_length", 0) or None,
    }


def _refuse_unknown_keys(metadata: Metadata, at: str, further: tuple[str, ...]) -> None:
    unscaled = metadata.get(at + "rope.scaling.type") == "none"
    for key in metadata.keys(at):
        short = key.removeprefix(at)
        if short in (*_UNDERSTOOD, *ROTARY_KEYS, *further) or (
            unscaled and short.startswith("rope.scaling.")
        ):
            continue
        allowed = _WITHOUT_EFFECT.get(short)
        if allowed is None:
            raise metadata.wrong(
                key, "may change the model's results and is not run here; use a file without it"
            )
        if metadata.get(key) not in allowed:
            values = " or ".join(str(value) for value in allowed)
            raise metadata.wrong(key, f"is not run here; only {values} is")
