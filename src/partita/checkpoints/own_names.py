"""Folders of our own: tensors by our names, in our shapes, and a `partita.json` that holds the model.

A matrix in int8 has its scales beside it as `{name}_scale`. Knows nothing about how tensors are stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from partita.checkpoints.dims import DIMS, kind
from partita.checkpoints.sources import Names, Source, source_of
from partita.errors import InputError
from partita.program.parameters import CHANNELS, all_parameter_shapes, scale_name
from partita.specs.hugging_face.file import load
from partita.specs.model import Model
from partita.specs.wording import describe

CONFIG = "partita.json"
_FORMAT = "partita-checkpoint-1"
_LINES = {name: [f"{name} {' '.join(dims)}"] for name, dims in DIMS.items()}
NAMES = Names(outside=_LINES, layer="layers.{i}.", block=_LINES, bare=())


def read_model(path: Path) -> Model:
    """The model of a `partita.json`; InputError where it is not what `write_model` writes."""
    config = load(path)
    if config.get("format") != _FORMAT:
        found = config.get("format")
        raise InputError("model", str(path), f"has format {found!r:.40}; accepted is {_FORMAT}")
    try:
        return Model.model_validate(config.get("model"))
    except ValidationError as error:
        raise InputError("model", str(path), f"its model does not fit together: {describe(error)}") from None


def write_model(folder: Path, model: Model) -> None:
    content: dict[str, Any] = {
        "format": _FORMAT,
        "model": model.model_dump(mode="json", exclude_none=True),
    }
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def scale_sources(model: Model, names: Iterable[str]) -> dict[str, Source]:
    """By the name of each quantised parameter, where its scales lie."""
    shapes = all_parameter_shapes(model)
    return {
        name: source_of(
            [f"{scale_name(name)} {' '.join(CHANNELS[kind(name)])}"],
            CHANNELS[kind(name)],
            dict(zip(DIMS[kind(name)], shapes[name], strict=True)),
        )
        for name in names
    }
