"""Folders as checkpoints: in Hugging Face form, or in the form that `partita quantize` writes.

The second has a `partita.json` that holds the model, and tensors with the names and shapes of
`partita.specs.parameters`; beside a matrix in int8 lie its scales as `{name}_scale`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError

from partita.checkpoints.names import HUGGING_FACE
from partita.checkpoints.protocol import StoredCheckpoint
from partita.checkpoints.safetensors import SafetensorsFolder
from partita.checkpoints.sampling_defaults import sampling_of_folder
from partita.checkpoints.sources import Names, Source, check_tensors, source_of
from partita.errors import InputError
from partita.specs.hugging_face import model_from_config
from partita.specs.hugging_face.config import load, packing
from partita.specs.model import Model
from partita.specs.parameters import Parameter, all_parameters, parameter_table, scale_name
from partita.specs.wording import describe

if TYPE_CHECKING:
    from partita.checkpoints.tokenizer import Tokenizer

CONFIG, PARTITA_JSON = "config.json", "partita.json"
_FORMAT = "partita-checkpoint-1"
_ROWS = 4096  # of an embedding compared at a time


def open_folder(folder: Path, name: str | None = None) -> StoredCheckpoint:
    """Opens a folder without reading its weights yet. name: the model's, where it is not the folder's.

    Raises InputError, before anything is read into memory, for files that are missing, damaged or do not fit
    together, for what the model's family has that is not run here, and, once for all of them, for tensors
    that are missing, extra, of another shape or in an unknown number format.
    """
    if (folder / PARTITA_JSON).is_file():
        return _open_partita(folder, name)
    if not (folder / CONFIG).is_file():
        message = f"has no {CONFIG}; give a folder with {CONFIG}, tokenizer.json and *.safetensors"
        raise InputError("model", str(folder), message)
    return _open_hugging_face(folder, name)


def model_from_partita_json(path: Path) -> Model:
    """The model of a `partita.json`; InputError where it is not what `write_partita_json` writes."""
    config = load(path)
    if config.get("format") != _FORMAT:
        found = config.get("format")
        raise InputError("model", str(path), f"has format {found!r:.40}; accepted is {_FORMAT}")
    try:
        return Model.model_validate(config.get("model"))
    except ValidationError as error:
        raise InputError("model", str(path), f"its model does not fit together: {describe(error)}") from None


def write_partita_json(folder: Path, model: Model) -> None:
    content = {"format": _FORMAT, "model": model.model_dump(mode="json", exclude_none=True)}
    (folder / PARTITA_JSON).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _open_partita(folder: Path, name: str | None) -> StoredCheckpoint:
    model = model_from_partita_json(folder / PARTITA_JSON)
    model = model if name is None else model.model_copy(update={"name": name})
    tensors = SafetensorsFolder(folder)
    sources = _partita_names(model).sources(model, tensors.shapes)
    rows = all_parameters(model)
    in_int8 = {name for name, row in rows.items() if row.quantisable and tensors.formats.get(name) == "I8"}
    scales = {name: _scale_source(rows[name]) for name in in_int8}
    stored_scales = {scale_name(name): source for name, source in scales.items()}
    check_tensors(folder, {**sources, **stored_scales}, tensors.shapes)
    tensors.check_formats(sources.keys() - in_int8)
    tensors.check_formats(stored_scales.keys(), ("F32",))
    return _checkpoint(folder, model, sources, tensors, scales)


def _partita_names(model: Model) -> Names:
    lines = {name: [f"{name} {' '.join(row.dims)}"] for name, row in parameter_table(model).items()}
    return Names(outside=lines, layer="layers.{i}.", block=lines, bare=())


def _scale_source(row: Parameter) -> Source:
    """Where the scales of a parameter in int8 lie."""
    return source_of([f"{scale_name(row.name)} {' '.join(row.channels)}"], row.channels, row.sizes)


def _open_hugging_face(folder: Path, name: str | None) -> StoredCheckpoint:
    model = model_from_config(folder / CONFIG, name)
    config = load(folder / CONFIG)
    family, packed = config["model_type"], packing(config)
    if packed is not None:
        message = "such weights are not run, though the model can be planned; to run it give the folder that "
        message += (
            "they were made from, in int8 with `partita quantize` or --weights int8 where it must be small"
        )
        raise InputError("quantization_config", packed, message)
    if family not in HUGGING_FACE:
        known = ", ".join(HUGGING_FACE)
        message = f"can be planned, but its weights are not read here; those of these are: {known}"
        raise InputError("model_type", family, message)
    names = HUGGING_FACE[family]
    tensors = SafetensorsFolder(folder)
    sources = names.sources(model, tensors.shapes)
    spare = [names.outside["unembed"][0].split()[0]] if model.tied_embedding else []
    check_tensors(folder, sources, tensors.shapes, (*names.harmless, *spare))
    tensors.check_formats({part.stored for source in sources.values() for part in source.parts})
    for unembedding in spare:
        _check_tied(tensors, unembedding, sources["embed"].parts[0].stored)
    return _checkpoint(folder, model, sources, tensors)


def _check_tied(tensors: SafetensorsFolder, unembedding: str, embedding: str) -> None:
    """An unembedding that is stored though the embedding is tied must be the same as the embedding."""
    if unembedding not in tensors.shapes:
        return
    same = tensors.shapes[unembedding] == tensors.shapes[embedding]
    tensors.check_formats({unembedding})
    for start in range(0, tensors.shapes[embedding][0], _ROWS):
        rows = (slice(start, start + _ROWS),)
        same = same and np.array_equal(tensors.read(unembedding, rows), tensors.read(embedding, rows))
    if not same:
        message = f"{unembedding} differs from {embedding}, which its configuration says it is tied to"
        raise InputError("model", str(tensors.path), message)


def _checkpoint(
    folder: Path,
    model: Model,
    sources: Mapping[str, Source],
    tensors: SafetensorsFolder,
    scales: Mapping[str, Source] | None = None,
) -> StoredCheckpoint:
    # imported where they are called, so that a plan of such a folder imports no tokenizers
    def load_tokenizer() -> Tokenizer | None:
        from partita.checkpoints.tokenizer_files import read_tokenizer

        return read_tokenizer(folder, model.vocabulary)

    def load_eos_ids() -> Set[int]:
        from partita.checkpoints.tokenizer_files import end_tokens

        return end_tokens(folder).keys()

    return StoredCheckpoint(
        *(model, sources, tensors.read, load_tokenizer, scales or {}, load_eos_ids),
        load_sampling=lambda: sampling_of_folder(folder),
    )
