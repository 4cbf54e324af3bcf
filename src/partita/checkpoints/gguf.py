"""GGUF files as checkpoints: the model that a file describes, its parameters and its tokenizer."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

from partita.checkpoints.gguf_file import GGUFFile
from partita.checkpoints.gguf_model import read_model, with_rotary_divisors
from partita.checkpoints.names import GGUF
from partita.checkpoints.protocol import StoredCheckpoint
from partita.checkpoints.sampling_defaults import sampling_of_gguf
from partita.checkpoints.sources import check_tensors

if TYPE_CHECKING:
    from partita.checkpoints.tokenizer import Tokenizer

_DIVISORS = "rope_freqs.weight"
# Why a tensor beyond the known ones is refused: part of its name -> what it is.
_REASONS = {"rope_": "rotary tables", ".bias": "biases", "_exps": "experts", "_inp": "experts"}


def open_gguf(path: Path, name: str | None = None) -> StoredCheckpoint:
    """Opens a GGUF file, mapped rather than read: a parameter is dequantised when it is asked for.

    name: the model's, where it is not the file's.

    Raises InputError for a file that is damaged or cut short (field "model", value the path), for an
    architecture or metadata key that is not run here (field the key), and, once for all of them, for
    tensors that are missing, extra or of another shape.
    """
    file = GGUFFile(path)
    model = read_model(file.metadata, file.shapes)
    names = GGUF[file.metadata.text("general.architecture")]
    sources = names.sources(model, file.shapes)
    check_tensors(path, sources, file.shapes, names.harmless, _REASONS)
    if _DIVISORS in file.shapes and model.positions == "rotary":
        model = with_rotary_divisors(model, file.read(_DIVISORS), str(path))
    if name is not None:
        model = model.model_copy(update={"name": name})

    def load_tokenizer() -> Tokenizer | None:
        # imported here, so that a plan of a .gguf file imports no tokenizers
        from partita.checkpoints.gguf_tokenizer import read_tokenizer

        return read_tokenizer(file.metadata, model.vocabulary)

    def load_eos_ids() -> Set[int]:
        from partita.checkpoints.gguf_tokenizer import end_tokens

        return end_tokens(file.metadata, model.vocabulary).keys()

    return StoredCheckpoint(
        *(model, sources, file.read, load_tokenizer),
        load_eos_ids=load_eos_ids,
        load_sampling=lambda: sampling_of_gguf(file.metadata),
    )
