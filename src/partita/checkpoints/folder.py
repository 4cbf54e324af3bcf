"""Folders as checkpoints: in Hugging Face form, or as `partita quantize` writes them.

Knows which file says what; formats, families and tokenizers have files of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from partita.checkpoints import hf_names, own_names
from partita.checkpoints.checking import check_tensors
from partita.checkpoints.dims import is_quantisable
from partita.checkpoints.safetensors_folder import SafetensorsFolder
from partita.checkpoints.sources import Source
from partita.checkpoints.stored import StoredCheckpoint
from partita.errors import InputError
from partita.program.parameters import scale_name
from partita.specs.hugging_face import model_from_config
from partita.specs.hugging_face.file import load
from partita.specs.model import Model

if TYPE_CHECKING:
    from partita.checkpoints.tokenizer import Tokenizer

CONFIG = "config.json"
_ROWS = 4096  # of an embedding compared at a time


def open_folder(folder: Path, name: str | None = None) -> StoredCheckpoint:
    """Opens a folder without reading its weights yet. name: of the model, the folder's where there is none.

    Raises InputError, before anything is read into memory, for files that are missing, damaged or do not fit
    together, for what the model's family has that is not run here, and, once for all of them, for tensors
    that are missing, extra, of another shape or in an unknown number format.
    """
    if (folder / own_names.CONFIG).is_file():
        return _open_own(folder, name)
    if not (folder / CONFIG).is_file():
        message = f"has no {CONFIG}; give a folder with {CONFIG}, tokenizer.json and *.safetensors"
        raise InputError("model", str(folder), message)
    model = model_from_config(folder / CONFIG, name)
    family = load(folder / CONFIG)["model_type"]
    if family not in hf_names.FAMILIES:
        known = ", ".join(hf_names.FAMILIES)
        message = f"can be planned, but its weights are not read here; those of these are: {known}"
        raise InputError("model_type", family, message)
    names = hf_names.FAMILIES[family](model)
    tensors = SafetensorsFolder(folder)
    sources = names.sources(model, tensors.shapes)
    spare = [names.outside["unembed"][0].split()[0]] if model.tied_embedding else []
    check_tensors(folder, sources, tensors.shapes, (*names.harmless, *spare))
    tensors.check_formats({piece.stored for source in sources.values() for piece in source.pieces})
    for stored in spare:
        _check_equal(tensors, stored, sources["embed"].pieces[0].stored)
    return _checkpoint(folder, model, sources, tensors)


def _open_own(folder: Path, name: str | None) -> StoredCheckpoint:
    """Opens a folder that `partita quantize` wrote."""
    model = own_names.read_model(folder / own_names.CONFIG)
    model = model if name is None else model.model_copy(update={"name": name})
    tensors = SafetensorsFolder(folder)
    sources = own_names.NAMES.sources(model, tensors.shapes)
    held = {name for name, form in tensors.formats.items() if form == "I8" and is_quantisable(name)}
    scales = own_names.scale_sources(model, held & sources.keys())
    stored_scales = {scale_name(name): source for name, source in scales.items()}
    check_tensors(folder, {**sources, **stored_scales}, tensors.shapes)
    tensors.check_formats(sources.keys() - held)
    tensors.check_formats(set(stored_scales), ("F32",))
    return _checkpoint(folder, model, sources, tensors, scales)


def _checkpoint(
    folder: Path,
    model: Model,
    sources: Mapping[str, Source],
    tensors: SafetensorsFolder,
    scales: Mapping[str, Source] | None = None,
) -> StoredCheckpoint:
    def load_tokenizer() -> Tokenizer | None:
        from partita.checkpoints.tokenizer_files import read_tokenizer

        return read_tokenizer(folder, model.vocabulary)

    def ends() -> Set[int]:
        from partita.checkpoints.tokenizer_files import end_tokens

        return end_tokens(folder)

    return StoredCheckpoint(model, sources, tensors.read, load_tokenizer, scales, ends)


def _check_equal(tensors: SafetensorsFolder, spare: str, embedding: str) -> None:
    """An unembedding that is there though the embedding is tied must be the same, if it is there."""
    if spare not in tensors.shapes:
        return
    same = tensors.shapes[spare] == tensors.shapes[embedding]
    tensors.check_formats({spare})
    for start in range(0, tensors.shapes[embedding][0], _ROWS):
        rows = (slice(start, start + _ROWS),)
        same = same and np.array_equal(tensors.read(spare, rows), tensors.read(embedding, rows))
    if not same:
        message = f"{spare} differs from {embedding}, which its configuration says it is tied to"
        raise InputError("model", str(tensors.path), message)
