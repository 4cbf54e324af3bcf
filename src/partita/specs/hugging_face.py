"""A model from the `config.json` of a checkpoint in Hugging Face form.

Knows nothing about the tensors beside it (`checkpoints/` does). It reads configurations of the Llama form,
and refuses by name each field that would make the model compute something our program does not. Fields that
are absent take the defaults of `LlamaConfig` and `MistralConfig` in the transformers library.
"""

from __future__ import annotations

import json
import math
import os
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from partita.errors import InputError
from partita.specs.model import Model
from partita.specs.wording import did_you_mean

MODEL_TYPES = ("llama", "mistral")
_COUNTS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_OPTIONAL_COUNTS = ("num_key_value_heads", "head_dim", "max_position_embeddings")
_ABSENT: dict[str, dict[str, Any]] = {"mistral": {"num_key_value_heads": 8, "sliding_window": 4096}}
"""What transformers takes an absent field to be, where that is not the same as null."""


def model_from_config(source: str | os.PathLike[str] | Mapping[str, Any], name: str | None = None) -> Model:
    """The model that a `config.json` describes.

    source: path of the file, or what it holds. name: by default that of the file's folder, and for a mapping
    its `_name_or_path`, else its `model_type`.

    Raises InputError on the field of `config.json` that is missing, of a wrong type or not supported; on
    `model` where the file cannot be read.
    """
    if isinstance(source, Mapping):
        config, where = source, None
    else:
        config, where = _load(source), os.fspath(source)
    _check_model_type(config)
    config = {**_ABSENT.get(config.get("model_type", ""), {}), **config}
    config = {field: value for field, value in config.items() if value is not None}
    _check_types(config, where)
    _check_supported(config)
    d_model, heads = config["hidden_size"], config["num_attention_heads"]
    return Model(
        name=name or _name(config, where),
        layers=config["num_hidden_layers"],
        d_model=d_model,
        d_ff=config["intermediate_size"],
        heads=heads,
        kv_heads=_kv_heads(config),
        head_dim=_head_dim(config),
        vocabulary=config["vocab_size"],
        block="serial",
        norm="rmsnorm",
        norm_epsilon=config.get("rms_norm_eps", 1e-6),
        feed_forward="swiglu",
        positions="rotary",
        rotary_base=_rotary(config).get("rope_theta", config.get("rope_theta", 10_000.0)),
        tied_embedding=config.get("tie_word_embeddings", False),
        max_context=config.get("max_position_embeddings"),
    )


def _load(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    try:
        config = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise InputError("model", os.fspath(path), f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError("model", os.fspath(path), "is not a text file in UTF-8") from None
    except (ValueError, RecursionError) as error:  # JSONDecodeError says the line and column
        raise InputError("model", os.fspath(path), f"is not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise InputError("model", os.fspath(path), "must hold one JSON object, as a config.json does")
    return config


def _name(config: Mapping[str, Any], where: str | None) -> str:
    if where is not None:
        return Path(where).resolve().parent.name or "model"
    return str(config.get("_name_or_path") or config["model_type"])


def _check_model_type(config: Mapping[str, Any]) -> None:
    model_type = config.get("model_type")
    if model_type is not None and model_type not in MODEL_TYPES:
        message = (
            f"not supported; {did_you_mean(str(model_type), MODEL_TYPES)}supported: {', '.join(MODEL_TYPES)}"
        )
        raise InputError("model_type", model_type, message)


def _check_types(config: Mapping[str, Any], where: str | None) -> None:
    """Every field that is read is there and of its type; all that fail are named at once."""
    missing = [field for field in ("model_type", *_COUNTS) if field not in config]
    if missing:
        names = ", ".join(missing)
        raise InputError(names, where, f"config.json needs {names}")
    wrong: dict[str, str] = {}
    for field in (*_COUNTS, *_OPTIONAL_COUNTS):
        if field in config and not _is_count(config[field]):
            wrong[field] = "a whole number of at least 1"
    for field in ("rms_norm_eps", "rope_theta"):
        if field in config and not _is_positive(config[field]):
            wrong[field] = "a number above zero"
    if not isinstance(config.get("tie_word_embeddings", False), bool):
        wrong["tie_word_embeddings"] = "true or false"
    rotary = config.get("rope_parameters", {})
    if not (isinstance(rotary, dict) and _is_positive(rotary.get("rope_theta", 1.0))):
        wrong["rope_parameters"] = "an object whose rope_theta is a number above zero"
    if wrong:
        parts = [f"{field} = {reprlib.repr(config[field])} must be {what}" for field, what in wrong.items()]
        raise InputError(", ".join(wrong), where, f"in config.json {'; '.join(parts)}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _rotary(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("rope_parameters", {})


def _is_plain_rotary(value: Any) -> bool:
    if not value:
        return True
    return isinstance(value, dict) and value.get("rope_type", value.get("type", "default")) == "default"


# Field, which values leave the program as it is, and the words for those.
_SUPPORTED: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("hidden_act", lambda v: v in (None, "silu"), "silu"),
    ("attention_bias", lambda v: not v, "false; attention here has no biases"),
    ("mlp_bias", lambda v: not v, "false; the feed-forward block here has no biases"),
    ("sliding_window", lambda v: v is None, "null (absent means 4096 in a mistral one)"),
    (
        "layer_types",
        lambda v: not v or (isinstance(v, list) and set(map(str, v)) == {"full_attention"}),
        "full_attention for every layer",
    ),
    ("rope_scaling", _is_plain_rotary, "null; rotary positions here are not scaled"),
    ("rope_parameters", _is_plain_rotary, "rope_type default; rotary positions here are not scaled"),
    ("rope_interleaved", lambda v: not v, "false; rotary positions here pair the halves of a head"),
    ("partial_rotary_factor", lambda v: v in (None, 1), "1; rotary positions here turn the whole head"),
    ("quantization_config", lambda v: not v, "null; weights are read unquantised"),
)


def _check_supported(config: Mapping[str, Any]) -> None:
    for field, accepts, accepted in _SUPPORTED:
        value = config.get(field)
        if not accepts(value):
            shown = reprlib.repr(value) if isinstance(value, dict | list) else value
            raise InputError(field, shown, f"not supported in config.json; accepted: {accepted}")
    factor = _rotary(config).get("partial_rotary_factor")
    if factor not in (None, 1):
        message = "not supported in config.json; accepted: 1; rotary positions here turn the whole head"
        raise InputError("rope_parameters.partial_rotary_factor", factor, message)


def _kv_heads(config: Mapping[str, Any]) -> int:
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    if heads % kv_heads:
        raise InputError("num_key_value_heads", kv_heads, f"must divide num_attention_heads ({heads})")
    return kv_heads


def _head_dim(config: Mapping[str, Any]) -> int:
    head_dim = config.get("head_dim")
    d_model, heads = config["hidden_size"], config["num_attention_heads"]
    if head_dim is None:
        if d_model % heads:
            message = f"must be a multiple of num_attention_heads ({heads}), or head_dim be given"
            raise InputError("hidden_size", d_model, message)
        head_dim = d_model // heads
    if head_dim % 2:
        raise InputError("head_dim", head_dim, "must be even for rotary positions")
    return head_dim
