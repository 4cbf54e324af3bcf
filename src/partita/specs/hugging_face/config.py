"""Reads a `config.json` and checks it: types, values that must be as they are, fields nobody understands.

What a family accepts it declares itself (`family.py`). Harmless are fields that change no number a trained
model computes: those of training, of generation, of other heads than that of a language model, and notes of
the library that wrote the file. Their source: `PreTrainedConfig` and `GenerationConfig` of the transformers
library, versions 4 and 5.
"""

from __future__ import annotations

import json
import math
import os
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partita.errors import InputError
from partita.specs.hugging_face.family import Accepted, Config, Family, false, refuse


def load(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The object in a file. Raises InputError on `model` where it cannot be read or holds no object."""
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


_COUNTS = ("num_key_value_heads", "head_dim", "max_position_embeddings", "sliding_window")
_NUMBERS = ("rms_norm_eps", "rope_theta", "partial_rotary_factor")
_FLAGS = ("tie_word_embeddings", "attention_bias", "use_sliding_window", "rope_interleaved")
_EVERYWHERE: tuple[Accepted, ...] = (
    false("add_cross_attention", "there is no encoder"),
    false("is_encoder_decoder", "there is no encoder"),
    Accepted("is_causal", bool, "true; a token sees those before it alone"),
)

_EXPERTS = re.compile(r"expert|moe", re.IGNORECASE)


def check_types(family: Family, config: Config, where: str | None) -> None:
    """Checks that every field that is read is there and of its type; the error names all that are not."""
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
    if len(wrong) == 1:
        ((name, what),) = wrong.items()
        raise InputError(name, reprlib.repr(config[name]), f"must be {what} in {where or 'config.json'}")
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
    """Raises InputError on the first field that is set and is neither read nor known as harmless.

    What is null, false, 0 or empty is not set: it switches off what this version does not know.
    """
    known = {*family.needed, *family.counts, *family.numbers, *family.flags, *family.understood}
    known |= {"tie_word_embeddings", "max_position_embeddings"}
    known |= {rule.name for rule in (*_EVERYWHERE, *family.accepted)}
    for name, value in config.items():
        if value and name not in known and not _is_harmless(name):
            message = "may change the model and is not understood in config.json; leave it out if it does not"
            raise InputError(name, reprlib.repr(value), message)


def _says_something(value: Any) -> bool:
    """Whether a field is a number but 0, or a list: what experts are given by."""
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


def packing(config: Config) -> str | None:
    """How a file's weights are stored, where that is packed by a method of quantisation: in words, such as
    "in 4 bits, packed by awq". None where they are plain numbers."""
    given = config.get("quantization_config")
    if not given:
        return None
    if not isinstance(given, dict):
        raise refuse("quantization_config", given, "an object that names its quant_method")
    method = given.get("quant_method", "an unnamed method")
    four, eight = given.get("load_in_4bit"), given.get("load_in_8bit")
    bits = given.get("bits", given.get("w_bit", 4 if four else 8 if eight else None))
    size = f"in {bits} bits, " if _is_count(bits) else ""
    return f"{size}packed by {reprlib.repr(method) if not isinstance(method, str) else method}"


_FILE = {
    "quantization_config",  # how its weights are stored, which `packing` says; a plan chooses their format
    *("model_type", "architectures", "transformers_version", "dtype", "torch_dtype", "auto_map"),
    *("name_or_path", "tokenizer_class", "language", "model_max_length", "max_sequence_length"),
    *(
        "is_llama_config",
        "unsloth_fixed",
        "transformers.js_config",
        "vision_config",
        "use_bfloat16",
        "finetuning_task",
    ),
}
_HOW_IT_RUNS = {
    *("use_cache", "return_dict", "use_return_dict", "torchscript", "chunk_size_feed_forward"),
    *("output_attentions", "output_hidden_states", "output_past", "output_scores", "output_logits"),
    *("gradient_checkpointing", "attn_implementation", "use_flash_attn", "num_logits_to_keep", "is_decoder"),
    *("pretraining_tp", "reorder_and_upcast_attn", "tf_legacy_loss"),
}
_OTHER_HEADS = {
    *("num_labels", "id2label", "label2id", "problem_type", "task_specific_params", "pooler_hidden_act"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"),
}
_GENERATION = {
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "early_stopping", "max_time"),
    *("stop_strings", "do_sample", "num_beams", "cache_implementation", "cache_config", "temperature"),
    *("top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "repetition_penalty"),
    *("encoder_repetition_penalty", "length_penalty", "no_repeat_ngram_size", "bad_words_ids"),
    *("renormalize_logits", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens"),
    *("begin_suppress_tokens", "sequence_bias", "num_return_sequences", "return_dict_in_generate"),
    *("encoder_no_repeat_ngram_size", "diversity_penalty", "num_beam_groups", "num_assistant_tokens"),
    *("num_assistant_tokens_schedule", "assistant_confidence_threshold", "assistant_lookbehind"),
    "target_lookbehind",
}
_NAMES = _FILE | _HOW_IT_RUNS | _OTHER_HEADS | _GENERATION
_KINDS = re.compile(
    r"""^_                                         # private to the library that wrote it
    | (^|_)(dropout|pdrop)(_|$) | _dropout_prob$
    | initializer_range$ | ^initializer_factor$
    | _token_ids?$ | _token_index$
    | _version$""",
    re.VERBOSE,
)


def _is_harmless(name: str) -> bool:
    """Whether a field of this name changes nothing, whatever its value."""
    return name in _NAMES or _KINDS.search(name) is not None
