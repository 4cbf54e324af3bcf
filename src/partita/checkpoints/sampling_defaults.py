"""How a checkpoint asks to be sampled from, where a request leaves it open.

A folder says so in its `generation_config.json`, a GGUF file in keys of its own. Which settings are taken is
as in vLLM (`--generation-config auto`, its default): temperature, top_k, top_p, min_p, repetition_penalty and
max_new_tokens. With a `do_sample` of false the likeliest token is taken, as transformers does, whatever else
is set. A setting that is absent or null stays open.

Sources: https://docs.vllm.ai/en/stable/configuration/engine_args.html (generation-config); `Keys.General` of
the gguf library.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from partita.checkpoints.gguf_file import Metadata
from partita.errors import InputError
from partita.specs.hugging_face.config import load
from partita.specs.sampling import Sampling

GENERATION_CONFIG, _CONFIG = "generation_config.json", "config.json"
Settings = Mapping[str, float]
"""Fields of `Sampling` by name."""

_DRAWN = {name: name for name in ("temperature", "top_k", "top_p", "min_p")}
_NAMES = {**_DRAWN, "repetition_penalty": "repetition_penalty", "max_new_tokens": "max_tokens"}
_GGUF = {
    **{"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"},
    "penalty_repeat": "repetition_penalty",
}


def sampling_of_folder(folder: Path) -> Settings:
    """The settings of a folder in Hugging Face form; older ones are in its config.json.

    Raises InputError (field the setting) for a value that none can have.
    """
    path = next((folder / name for name in (GENERATION_CONFIG, _CONFIG) if (folder / name).is_file()), None)
    if path is None:
        return {}
    config = load(path)
    samples = config.get("do_sample")
    given = {name: value for name, value in config.items() if name in _NAMES and value is not None}
    if samples is False:
        given = {name: value for name, value in given.items() if name not in _DRAWN}
    elif samples is True:
        given.setdefault("temperature", 1.0)
    return _checked({_NAMES[name]: (name, value) for name, value in given.items()}, path)


def sampling_of_gguf(metadata: Metadata) -> Settings:
    """The settings of a GGUF file. Raises InputError (field the key) for a value that none can have."""
    keys = {name: f"general.sampling.{key}" for key, name in _GGUF.items()}
    found = {name: (key, _meant(metadata.get(key))) for name, key in keys.items() if key in metadata}
    return _checked(found, metadata.path)


def _meant(value: object) -> object:
    """A number as it was meant: 0.7 is stored in float32, which is a little less."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _checked(found: Mapping[str, tuple[str, Any]], path: Path) -> Settings:
    """The values by field as `Sampling` has them; they are given with the file's own names."""
    checked = {}
    for field, (name, value) in found.items():
        try:
            checked[field] = getattr(Sampling(**{field: value}), field)
        except InputError as error:
            raise InputError(name, error.value, f"{error.message} (in {path})") from None
    return checked
