"""A checkpoint over any container of named tensors: a model, and where each of its parameters lies.

Knows nothing about formats or families; `gguf.py` and `folder.py` open files into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from partita.checkpoints.int8 import channel_index, dequantise
from partita.checkpoints.sources import Read, Source
from partita.specs.model import Model

if TYPE_CHECKING:
    from partita.checkpoints.tokenizer import Tokenizer


class StoredCheckpoint:
    """A `Checkpoint` read from a file as it is asked for.

    read: gives a slice of a stored tensor. scales: where the scales of each quantised parameter lie.
    load_tokenizer: called once, when the tokenizer is first asked for. ends: the tokens that end a text where
    there is no tokenizer.
    """

    def __init__(
        self,
        model: Model,
        sources: Mapping[str, Source],
        read: Read,
        load_tokenizer: Callable[[], Tokenizer | None],
        scales: Mapping[str, Source] | None = None,
        ends: Callable[[], Set[int]] = frozenset,
    ):
        self.model = model
        self._sources = sources
        self._read = read
        self._load_tokenizer = load_tokenizer
        self._scales = scales or {}
        self._ends = ends
        self.quantised = frozenset(self._scales)

    def tensor(self, name: str) -> np.ndarray:
        """One parameter in float32, dequantised, in the shape `partita.program.parameters` gives it."""
        return self.read(name, ())

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A slice of one parameter in float32, dequantised."""
        if name not in self.quantised:
            return self._sources[name].read(self._read, index)
        scale = self.read_scale(name, channel_index(name, index))
        return dequantise(name, self.read_int8(name, index), scale)

    def read_int8(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        return self._sources[name].read(self._read, index, np.int8)

    def read_scale(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        return self._scales[name].read(self._read, index)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The file's own tokenizer, None where it has none; InputError for a kind that is not read."""
        return self._tokenizer

    @property
    def eos_ids(self) -> Set[int]:
        """The tokens that end a text."""
        return self._ends() if self.tokenizer is None else self.tokenizer.eos_ids

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        return self._load_tokenizer()
