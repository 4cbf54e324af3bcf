"""The model that the metadata of a GGUF file describe, by architecture.

Of the tensors only names and shapes are looked at, and the table of rotary divisors. Whatever would change
the result and is not run here is refused by name.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; what is no key: llama.cpp's llama-model.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
from pydantic import ValidationError

from partita.checkpoints.gguf_file import Metadata
from partita.errors import InputError
from partita.program.positions import frequencies
from partita.specs.model import Llama3Scaling, Model
from partita.specs.parameters import Shape
from partita.specs.wording import describe

Fields = Mapping[str, object]
"""Fields of `Model` by name, which it checks when it is made."""
Shapes = Mapping[str, Shape]
"""The shapes of a file's tensors by their names."""

_EPSILON = {"rmsnorm": "attention.layer_norm_rms_epsilon", "layernorm": "attention.layer_norm_epsilon"}
_UNDERSTOOD = (
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *_EPSILON.values(),
    *("rope.freq_base", "rope.dimension_count", "rope.scale_linear", "rope.scaling.type"),
    *("rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.finetuned"),
    *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
    "rope.scaling.attn_factor",
    "tensor_data_layout",  # where the converter found the weights; changes nothing
)
# Keys with a value that changes nothing, though any other would: key -> those values.
_WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),  # below zero stands for the usual one
    "rope.scaling.yarn_attn_factor": (1.0,),  # versions of llama.cpp differ in what it does beside the others
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
}
_LENGTH, _LOW, _HIGH = 8192, 1.0, 4.0  # of the rotary scaling of every Llama 3.1 and 3.2 that was published


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model, as `Model` has them."""

    layers: int
    d_model: int
    d_ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


@dataclass(frozen=True)
class Architecture:
    """What the models of one architecture have in common, and what else its keys say."""

    norm: str
    fields: Fields
    """Further fields of `Model` that are always so."""
    keys: tuple[str, ...] = ()
    """Further keys that are read."""
    partial_rotary: bool = False
    """Whether rotary positions may turn only a part of each head."""
    more: Callable[[Metadata, Sizes, Shapes], Fields] | None = None
    """Further fields, from the architecture's keys, the sizes and the tensors."""


def _gemma(metadata: Metadata, sizes: Sizes, largest: int) -> dict[str, object]:
    """Scores of the largest model, known by its layers, are scaled by d_model / heads, of all others by the
    head's size."""
    scale = (sizes.d_model // sizes.heads) ** -0.5 if sizes.layers == largest else None
    return {
        "embedding_scale": sizes.d_model**0.5,
        "attention_scale": scale,
        "window": metadata.integer("attention.sliding_window", least=1),
    }


def _gemma2(metadata: Metadata, sizes: Sizes, shapes: Shapes) -> Fields:
    caps = {"attention_softcap": "attn_logit_softcapping", "logit_softcap": "final_logit_softcapping"}
    softcaps = {name: metadata.number(key) for name, key in caps.items() if key in metadata}
    return {**_gemma(metadata, sizes, largest=46), "global_period": 2, **softcaps}


def _gemma3(metadata: Metadata, sizes: Sizes, shapes: Shapes) -> Fields:
    base = metadata.number("rope.freq_base_swa", 10_000.0)
    return {**_gemma(metadata, sizes, largest=62), "global_period": 6, "local_rotary_base": base}


def _gptneox(metadata: Metadata, sizes: Sizes, shapes: Shapes) -> Fields:
    parallel = metadata.flag("use_parallel_residual", True)
    return {"block": "parallel" if parallel else "serial", "separate_norms": parallel}


def _falcon(metadata: Metadata, sizes: Sizes, shapes: Shapes) -> Fields:
    return {"separate_norms": "blk.0.attn_norm_2.weight" in shapes}


_GATED = {"feed_forward": "swiglu"}
_GEMMA = {"feed_forward": "geglu", "post_norms": True}
_BIASES = {"qkv_bias": True, "output_bias": True, "ffn_bias": True}
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_WINDOW = "attention.sliding_window"

ARCHITECTURES = {
    "llama": Architecture("rmsnorm", _GATED),
    "qwen2": Architecture("rmsnorm", {**_GATED, "qkv_bias": True}),
    "qwen3": Architecture("rmsnorm", {**_GATED, "qk_norm": True}),
    "gemma2": Architecture("rmsnorm", _GEMMA, (*_CAPS, _WINDOW), more=_gemma2),
    "gemma3": Architecture(
        "rmsnorm", {**_GEMMA, "qk_norm": True}, (_WINDOW, "rope.freq_base_swa"), more=_gemma3
    ),
    "gpt2": Architecture("layernorm", {**_BIASES, "feed_forward": "gelu", "positions": "learned"}),
    "gptneox": Architecture(
        "layernorm",
        {**_BIASES, "feed_forward": "exact_gelu"},
        ("use_parallel_residual",),
        partial_rotary=True,
        more=_gptneox,
    ),
    "falcon": Architecture("layernorm", {"feed_forward": "exact_gelu", "block": "parallel"}, more=_falcon),
}


def read_model(metadata: Metadata, shapes: Shapes) -> Model:
    """The model of a file, from its metadata, the shapes of its tensors and its file name.

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
    architecture, metadata = ARCHITECTURES[name], metadata.under(f"{name}.")
    _refuse_unknown_keys(metadata, architecture.keys)
    sizes = _sizes(metadata, shapes)
    fields: dict[str, object] = {
        "name": metadata.path.stem,
        **asdict(sizes),
        "norm": architecture.norm,
        "norm_epsilon": metadata.number(_EPSILON[architecture.norm]),
        "tied_embedding": "output.weight" not in shapes,
        "max_context": metadata.integer("context_length", 0) or None,
        **architecture.fields,
    }
    if fields.get("positions", "rotary") == "rotary":
        fields |= _rotary(metadata, sizes.head_dim, architecture.partial_rotary)
    if architecture.more is not None:
        fields |= architecture.more(metadata, sizes, shapes)
    try:
        return Model.model_validate(fields)
    except ValidationError as error:
        raise InputError("model", str(metadata.path), f"its metadata do not fit: {describe(error)}") from None


def _refuse_unknown_keys(metadata: Metadata, further: tuple[str, ...]) -> None:
    unscaled = metadata.get("rope.scaling.type") == "none"
    for key in metadata:
        if key in (*_UNDERSTOOD, *further) or (unscaled and key.startswith("rope.scaling.")):
            continue
        allowed = _WITHOUT_EFFECT.get(key)
        if allowed is None:
            raise metadata.wrong(
                key, "may change the model's results and is not run here; use a file without it"
            )
        if metadata.get(key) not in allowed:
            values = " or ".join(str(value) for value in allowed)
            raise metadata.wrong(key, f"is not run here; only {values} is")


def _sizes(metadata: Metadata, shapes: Shapes) -> Sizes:
    heads = metadata.integer("attention.head_count", least=1)
    d_model = metadata.integer("embedding_length", least=1)
    head_dim = metadata.integer("attention.key_length", d_model // heads, least=1)
    if metadata.integer("attention.value_length", head_dim) != head_dim:
        message = f"must equal the head dimension, {head_dim}; other values are not run"
        raise metadata.wrong("attention.value_length", message)
    layers = metadata.integer("block_count", least=1)
    if layers > len(shapes):
        raise metadata.wrong("block_count", f"the file has only {len(shapes)} tensors in all")
    embedding = shapes.get("token_embd.weight", (0,))
    return Sizes(
        layers=layers,
        d_model=d_model,
        d_ff=metadata.integer("feed_forward_length", least=1),
        heads=heads,
        kv_heads=metadata.integer("attention.head_count_kv", heads, least=1),
        head_dim=head_dim,
        vocabulary=metadata.integer("vocab_size", embedding[0], least=1),
    )


def _rotary(metadata: Metadata, head_dim: int, partial: bool) -> Fields:
    """The fields of rotary positions. partial: whether they may turn only a part of each head."""
    key = "rope.dimension_count"
    turned = metadata.integer(key, head_dim)
    if partial and (turned > head_dim or turned < 2 or turned % 2):
        raise metadata.wrong(key, f"must be even and at most the head dimension, {head_dim}")
    if not partial and turned != head_dim:
        raise metadata.wrong(key, f"must equal the head dimension, {head_dim}; other values are not run")
    return {
        "positions": "rotary",
        "rotary_base": metadata.number("rope.freq_base", 10_000.0),
        "rotary_fraction": turned / head_dim,
        "rotary_scaling": _scaling(metadata),
    }


def _scaling(metadata: Metadata) -> Fields | None:
    kind = metadata.get("rope.scaling.type")
    key = "rope.scaling.factor"
    if kind is None and key not in metadata:
        key = "rope.scale_linear"  # its name in the first files
    factor = metadata.get(key)
    sharpened = metadata.number("rope.scaling.attn_factor", 1.0)  # beside YaRN's own factor
    if kind != "yarn" and sharpened != 1:
        raise metadata.wrong(
            "rope.scaling.attn_factor", "is run with yarn scaling alone; otherwise only 1 is"
        )
    if kind == "none" or (kind in (None, "linear") and factor in (None, 0, 1)):
        return None
    if kind in (None, "linear"):
        return {"kind": "linear", "factor": metadata.number(key)}
    if kind != "yarn":
        raise metadata.wrong("rope.scaling.type", "not run here; none, linear and yarn are")
    usual = 0.1 * math.log(metadata.number(key)) + 1
    return {
        "kind": "yarn",
        "factor": metadata.number(key),
        "attention_factor": None if sharpened == 1 else sharpened * usual,
        "original_max_position": metadata.integer("rope.scaling.original_context_length", least=1),
        "beta_fast": metadata.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": metadata.number("rope.scaling.yarn_beta_slow", 1.0),
    }


def with_rotary_divisors(model: Model, divisors: np.ndarray, path: str) -> Model:
    """The model with the rotary scaling whose frequencies are those of its base divided by these.

    Llama 3's scaling is no metadata: the file has the divisor of each frequency as a tensor, and the numbers
    behind it are found again here. Raises InputError where no scaling of Llama 3 gives them.
    """
    plain = model.model_copy(update={"rotary_scaling": None})
    if divisors.shape == (model.rotary_dim // 2,) and np.isfinite(divisors).all() and (divisors >= 1).all():
        factor = float(divisors.max())
        if factor == 1:
            return plain
        scaling = Llama3Scaling(
            factor=factor, low_freq_factor=_LOW, high_freq_factor=_HIGH, original_max_position=_LENGTH
        )
        scaled = plain.model_copy(update={"rotary_scaling": scaling})
        if np.allclose(frequencies(plain) / divisors, frequencies(scaled), rtol=1e-4):
            return scaled
    message = "its rope_freqs.weight are not the divisors of Llama 3's rotary scaling, and no others are run"
    raise InputError("model", path, message)
