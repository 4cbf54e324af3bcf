"""A model from the `config.json` of a checkpoint in Hugging Face form.

The tensors beside it are read by `checkpoints/`. Each family of models says in its own file how its fields
are named and what they mean; here a file is read, checked and handed to its family. A field that would change
the model's sizes or results and is not understood is refused by name. Fields that are absent take the
defaults of the transformers library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from partita.errors import InputError
from partita.specs.hugging_face import gemma, gpt, latent, llama
from partita.specs.hugging_face.config import (
    check_accepted,
    check_types,
    check_understood,
    load,
    refuse_experts,
)
from partita.specs.hugging_face.family import Family
from partita.specs.model import Model
from partita.specs.wording import describe, did_you_mean

_FAMILIES: dict[str, Family] = {**llama.FAMILIES, **gemma.FAMILIES, **gpt.FAMILIES, **latent.FAMILIES}
MODEL_TYPES = tuple(_FAMILIES)


def model_from_config(source: str | os.PathLike[str] | Mapping[str, Any], name: str | None = None) -> Model:
    """The model that a `config.json` describes, or its language model if it also sees images.

    `source` is the path of the file, or what it holds. `name` is by default that of the file's folder, and
    for a mapping its `_name_or_path`, else its `model_type`.

    Raises InputError on the field of `config.json` that is missing, of a wrong type or not supported; on
    `model` where the file cannot be read.
    """
    if isinstance(source, Mapping):
        config, where = source, None
    else:
        config, where = load(source), os.fspath(source)
    family = _family(config)
    name = name or _name(config, where)
    config = family.unwrap(config)
    config = {**family.absent, **config}
    config = {field: value for field, value in config.items() if value is not None}
    family.mixture(config)
    refuse_experts(family, config)
    check_types(family, config, where)
    check_accepted(family, config)
    check_understood(family, config)
    try:
        fields = family.read(config)
    except KeyError as error:
        field = error.args[0]
        if field not in family.absent:
            raise
        message = "is null in config.json; give its value, or leave the field out for the usual one"
        raise InputError(field, None, message) from None
    fields["max_context"] = _reach(fields)
    try:
        return Model(name=name, **fields)
    except ValidationError as error:
        raise InputError("model", name, f"its config.json does not fit together: {describe(error)}") from None


def _reach(fields: Mapping[str, Any]) -> int | None:
    """The longest context: YaRN and dynamic scaling reach beyond the length in the file, which for dynamic
    scaling is, and for YaRN may be, the one before it."""
    context, scaling = fields.get("max_context"), fields.get("rotary_scaling")
    if context is None or scaling is None or scaling["kind"] not in ("yarn", "dynamic"):
        return context
    return max(context, int(scaling["factor"] * scaling["original_max_position"]))


def _family(config: Mapping[str, Any]) -> Family:
    """The family of the model_type; where that is missing any will do, for the error names it as missing."""
    model_type = config.get("model_type")
    if model_type is None:
        return _FAMILIES["llama"]
    family = _FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        known = ", ".join(MODEL_TYPES)
        if "moe" in str(model_type) or model_type in ("mixtral", "dbrx", "gpt_oss", "llama4", "jamba"):
            message = f"a mixture of experts is not supported; supported: {known}"
        else:
            message = f"not supported; {did_you_mean(str(model_type), MODEL_TYPES)}supported: {known}"
        raise InputError("model_type", model_type, message)
    return family


def _name(config: Mapping[str, Any], where: str | None) -> str:
    if where is not None:
        return Path(where).resolve().parent.name or "model"
    return str(config.get("_name_or_path") or config.get("model_type") or "model")
