"""What is declared of a family of models, and the readings that several families share.

The families themselves are in `llama.py`, `gemma.py`, `gpt.py` and `latent.py`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from partita.errors import InputError

Config = Mapping[str, Any]
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


@dataclass(frozen=True)
class Accepted:
    """A field that is read only at values that leave the model as it is."""

    name: str
    accepts: Callable[[Any], bool]
    words: str


@dataclass(frozen=True)
class Family:
    """How the `config.json` of one model_type is read. Names of fields are those of the file."""

    read: Callable[[Config], dict[str, Any]]
    """The fields of `Model` but its name, from a checked configuration without nulls."""
    needed: tuple[str, ...] = SIZES
    """Whole numbers that must be there."""
    counts: tuple[str, ...] = ()
    """Whole numbers of at least 1 that may be there."""
    numbers: tuple[str, ...] = ()
    """Numbers above zero that may be there."""
    flags: tuple[str, ...] = ()
    absent: Config = field(default_factory=dict)
    """What the transformers library takes an absent field to be, where that is not the same as null."""
    unwrap: Callable[[Config], Config] = lambda config: config
    """From the whole file to the part that describes the language model."""
    mixture: Callable[[Config], object] = lambda config: None
    """Raises InputError where a layer has experts; asked before any other field of the file, since that is
    the first thing to know of a model that is not read."""
    accepted: tuple[Accepted, ...] = ()
    understood: tuple[str, ...] = ()
    """Further fields that are read, or are known to change nothing that is read. Any that is named nowhere
    here is refused, unless no model heeds it (`config.py`)."""


def false(name: str, words: str) -> Accepted:
    """A field that must be false, or absent."""
    return Accepted(name, lambda value: not value, f"false; {words}")


def refuse(name: str, value: Any, accepted: str) -> InputError:
    """The error for a value of a field that is not read."""
    shown = reprlib.repr(value) if isinstance(value, dict | list) else value
    return InputError(name, shown, f"not supported in config.json; accepted: {accepted}")


def kv_heads(config: Config, heads: int, name: str = "num_key_value_heads") -> int:
    """Key/value heads; as many as query heads where the file has no number."""
    found = config.get(name, heads)
    if heads % found:
        raise InputError(name, found, f"must divide the attention heads ({heads})")
    return found


def head_dim(config: Config, d_model: int, heads: int) -> int:
    """The size of a head, from the file or the width divided by the heads; even, for rotary positions."""
    found = config.get("head_dim")
    if found is None:
        if d_model % heads:
            message = f"must be a multiple of the attention heads ({heads}), or head_dim be given"
            raise InputError("hidden_size", d_model, message)
        return divided(d_model, heads)
    if found % 2:
        raise InputError("head_dim", found, "must be even for rotary positions")
    return found


def divided(d_model: int, heads: int) -> int:
    """The width divided by the heads; even, for rotary positions."""
    if d_model % heads:
        raise InputError("hidden_size", d_model, f"must be a multiple of the attention heads ({heads})")
    if d_model // heads % 2:
        message = f"divided by the attention heads ({heads}) must be even for rotary positions"
        raise InputError("hidden_size", d_model, message)
    return d_model // heads


_TANH = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate")
"""Names of one function: GELU in its approximation by tanh."""


def gated(config: Config, name: str = "hidden_act", absent: str = "silu") -> str:
    """The feed-forward block of an activation between two input matrices."""
    kinds = {"silu": "swiglu", "swish": "swiglu"} | dict.fromkeys(_TANH, "geglu")
    value = config.get(name, absent)
    if not isinstance(value, str) or value not in kinds:
        raise refuse(name, value, "silu, gelu_pytorch_tanh")
    return kinds[value]


def plain(config: Config, name: str = "hidden_act") -> str:
    """The feed-forward block of an activation after one input matrix."""
    kinds = dict.fromkeys(_TANH, "gelu") | dict.fromkeys(("gelu", "gelu_python"), "exact_gelu")
    value = config.get(name, "gelu")
    if not isinstance(value, str) or value not in kinds:
        raise refuse(name, value, ", ".join(kinds))
    return kinds[value]
