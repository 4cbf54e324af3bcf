"""What is checked of any configuration: types, values that must be as they are, fields nobody understands.

Knows nothing about families but what they declare.
"""

from __future__ import annotations

import math
import re
import reprlib
from typing import Any

from partita.errors import InputError
from partita.specs.hugging_face.family import Accepted, Config, Family, false, refuse
from partita.specs.hugging_face.harmless import is_harmless

_COUNTS = ("num_key_value_heads", "head_dim", "max_position_embeddings", "sliding_window")
_NUMBERS = ("rms_norm_eps", "rope_theta", "partial_rotary_factor")
_FLAGS = ("tie_word_embeddings", "attention_bias", "use_sliding_window", "rope_interleaved")
_EVERYWHERE: tuple[Accepted, ...] = (
    false("quantization_config", "a plan chooses the weights' format itself, so leave the field out"),
    false("add_cross_attention", "there is no encoder"),
    false("is_encoder_decoder", "there is no encoder"),
    Accepted("is_causal", bool, "true; a token sees those before it alone"),
)

_EXPERTS = re.compile(r"expert|moe", re.IGNORECASE)


def check_types(family: Family, config: Config, where: str | None) -> None:
    """Every field that is read is there and of its type; all that fail are named at once."""
    missing = [name for name in ("model_type", *family.needed) if name not in config]
    if missing:
        names = ", ".join(missing)
        raise InputError(names, where, f"config.json needs {names}")
    wrong: dict[str, str] = {}
    for name in (*family.needed, *family.counts, *_COUNTS):
        if name in config and not _is_count(config[name]):
            wrong[name] = "a whole number of at least 1"
    for name in (*family.numbers, *_NUMBERS):
        if name in config and not _is_positive(config[name]):
            wrong[name] = "a number above zero"
    for name in (*family.flags, *_FLAGS):
        if name in config and not isinstance(config[name], bool):
            wrong[name] = "true or false"
    layers = config.get("max_window_layers", 0)
    if layers != 0 and not _is_count(layers):
        wrong["max_window_layers"] = "a whole number"
    for name in ("rope_parameters", "rope_scaling"):
        if not _is_rotary(config.get(name, {})):
            wrong[name] = "an object whose rope_theta is a number above zero"
    if wrong:
        parts = [f"{name} = {reprlib.repr(config[name])} must be {what}" for name, what in wrong.items()]
        raise InputError(", ".join(wrong), where, f"in config.json {'; '.join(parts)}")


def check_accepted(family: Family, config: Config) -> None:
    """Raises InputError on the first field with a value the model could not have here."""
    for rule in (*_EVERYWHERE, *family.accepted):
        if rule.name in config and not rule.accepts(config[rule.name]):
            raise refuse(rule.name, config[rule.name], rule.words)


def refuse_experts(family: Family, config: Config) -> None:
    """Raises InputError on the first field that makes the model a mixture of experts."""
    for name, value in config.items():
        if _EXPERTS.search(name) and _says_something(value) and name not in family.understood:
            raise InputError(name, value, "a mixture of experts is not supported in config.json")


def check_understood(family: Family, config: Config) -> None:
    """Raises InputError on the first field that says something and is neither read nor known as harmless.

    What is null, false, 0 or empty says nothing: it switches off what this version does not know.
    """
    known = {*family.needed, *family.counts, *family.numbers, *family.flags, *family.understood}
    known |= {"tie_word_embeddings", "max_position_embeddings"}
    known |= {rule.name for rule in (*_EVERYWHERE, *family.accepted)}
    for name, value in config.items():
        if value and name not in known and not is_harmless(name):
            message = "may change the model and is not understood in config.json; leave it out if it does not"
            raise InputError(name, reprlib.repr(value), message)


def _says_something(value: Any) -> bool:
    """A number but 0, or a list of things: what experts are given by."""
    return (_is_number(value) and value != 0) or (isinstance(value, list) and len(value) > 0)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_positive(value: Any) -> bool:
    return _is_number(value) and 0 < value < math.inf


def _is_rotary(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    parts = [value, *(value[kind] for kind in ("full_attention", "sliding_attention") if kind in value)]
    return all(
        isinstance(part, dict)
        and all(_is_positive(part.get(name, 1.0)) for name in ("rope_theta", "partial_rotary_factor"))
        for part in parts
    )
