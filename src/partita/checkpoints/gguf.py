"""GGUF files as checkpoints: a model, its parameters by our names, and its tokenizer.

Knows which architectures can be read, and nothing about meshes or what the parameters are used for.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from partita.checkpoints.gguf_file import GGUFFile
from partita.checkpoints.gguf_llama import check_tensors, llama_model, llama_sources
from partita.checkpoints.gguf_metadata import Metadata
from partita.specs.model import Model

if TYPE_CHECKING:
    from partita.checkpoints.tokenizer import Tokenizer

ARCHITECTURES = ("llama",)


def model_from_gguf(path: str | Path) -> Model:
    """The model of a GGUF file, from its header alone; InputError as `GGUFCheckpoint` raises it."""
    return GGUFCheckpoint(path).model


class GGUFCheckpoint:
    """A GGUF file, mapped rather than read: `tensor` dequantises one parameter at a time.

    Raises InputError for a file that is damaged or cut short (field "model", value the path), for an
    architecture or metadata key that is not run here (field the key), and, once for all of them, for
    tensors that are missing, extra or of another shape.
    """

    def __init__(self, path: str | Path):
        self._file = GGUFFile(path)
        self._metadata = Metadata(self._file.metadata, self._file.path)
        if self._metadata.text("general.architecture") not in ARCHITECTURES:
            raise self._metadata.wrong(
                "general.architecture", f"not supported; supported are: {', '.join(ARCHITECTURES)}"
            )
        if self._metadata.integer("split.count", 1) > 1:
            raise self._metadata.wrong(
                "split.count", "a model split over several files is not read; merge it into one"
            )
        shapes = {name: tensor.shape for name, tensor in self._file.tensors.items()}
        self.model = llama_model(self._metadata, shapes)
        self._sources = llama_sources(self.model)
        check_tensors(self._metadata, self._sources, shapes)

    def tensor(self, name: str) -> np.ndarray:
        """One parameter in float32, dequantised, in the shape `partita.program.parameters` gives it."""
        source = self._sources[name]
        value = source.convert(*(self._file.array(stored) for stored in source.tensors))
        return np.ascontiguousarray(value, dtype=np.float32)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The file's own tokenizer, None where it has none; InputError for a kind that is not read."""
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        from partita.checkpoints.gguf_tokenizer import read_tokenizer

        return read_tokenizer(self._metadata, self.model.vocabulary)
