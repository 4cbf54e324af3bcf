"""GGUF files as checkpoints: a model, its parameters by our names, and its tokenizer.

Knows nothing about meshes or what the parameters are used for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from partita.checkpoints.checking import check_tensors
from partita.checkpoints.gguf_file import GGUFFile
from partita.checkpoints.gguf_metadata import Metadata
from partita.checkpoints.gguf_models import read_model
from partita.checkpoints.gguf_names import names_of
from partita.checkpoints.gguf_rotary import with_divisors
from partita.checkpoints.stored import StoredCheckpoint
from partita.specs.model import Model

if TYPE_CHECKING:
    from partita.checkpoints.tokenizer import Tokenizer

_DIVISORS = "rope_freqs.weight"
# Why a tensor beyond the known ones is refused: part of its name -> what it is.
_REASONS = {"rope_": "rotary tables", ".bias": "biases", "_exps": "experts", "_inp": "experts"}


def model_from_gguf(path: str | Path) -> Model:
    """The model of a GGUF file, from its header alone; InputError as `GGUFCheckpoint` raises it."""
    return GGUFCheckpoint(path).model


class GGUFCheckpoint(StoredCheckpoint):
    """A GGUF file, mapped rather than read: a parameter is dequantised when it is asked for.

    Raises InputError for a file that is damaged or cut short (field "model", value the path), for an
    architecture or metadata key that is not run here (field the key), and, once for all of them, for
    tensors that are missing, extra or of another shape.
    """

    def __init__(self, path: str | Path):
        self._file = GGUFFile(path)
        metadata = Metadata(self._file.metadata, self._file.path)
        shapes = {name: tensor.shape for name, tensor in self._file.tensors.items()}
        model = read_model(metadata, shapes)
        names = names_of(metadata.text("general.architecture"), model)
        sources = names.sources(model, shapes)
        check_tensors(self._file.path, sources, shapes, names.harmless, _REASONS)
        if _DIVISORS in shapes and model.positions == "rotary":
            model = with_divisors(model, self._file.array(_DIVISORS), str(self._file.path))

        def load_tokenizer() -> Tokenizer | None:
            from partita.checkpoints.gguf_tokenizer import read_tokenizer

            return read_tokenizer(metadata, model.vocabulary)

        super().__init__(model, sources, self._file.array, load_tokenizer)
