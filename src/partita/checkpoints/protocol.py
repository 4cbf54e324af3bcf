"""What a checkpoint is to whoever loads one, and the simplest: arrays already in memory.

Knows nothing about file formats, nor about what is done with the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from partita.checkpoints.tokenizer import Tokenizer
from partita.specs.model import Model


class Checkpoint(Protocol):
    """A model with its parameters by name, as `partita.program.parameters` lists them."""

    @property
    def model(self) -> Model: ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None where the checkpoint holds no tokenizer."""
        ...

    def tensor(self, name: str) -> np.ndarray:
        """The float32 values of one parameter, in its unpadded shape."""
        ...


@dataclass(frozen=True)
class MemoryCheckpoint:
    """A checkpoint over arrays in memory, such as `random_parameters` makes."""

    model: Model
    parameters: Mapping[str, np.ndarray]
    tokenizer: Tokenizer | None = None

    def tensor(self, name: str) -> np.ndarray:
        return self.parameters[name]
