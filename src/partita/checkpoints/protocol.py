"""What a checkpoint is to whoever loads one, and the simplest: arrays already in memory.

Knows nothing about file formats, nor about what is done with the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from partita.checkpoints.dims import is_quantisable
from partita.checkpoints.int8 import dequantise, quantise
from partita.checkpoints.tokenizer import Tokenizer
from partita.program.parameters import all_parameter_shapes, scale_name
from partita.specs.model import Model

Index = tuple[slice, ...]
"""A slice of step 1 for each dim of an array, in the coordinates of the whole; () is all of it."""


class Checkpoint(Protocol):
    """A model with its parameters by name, as `partita.program.parameters` has them, read slice by slice."""

    @property
    def model(self) -> Model: ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None where the checkpoint holds no tokenizer."""
        ...

    @property
    def eos_ids(self) -> Set[int]:
        """The tokens that end a text."""
        ...

    @property
    def quantised(self) -> frozenset[str]:
        """Names of the parameters that are held as int8, such as "layers.0.q"; empty for most checkpoints."""
        ...

    def tensor(self, name: str) -> np.ndarray:
        """The float32 values of one parameter, in its unpadded shape."""
        ...

    def read(self, name: str, index: Index) -> np.ndarray:
        """`tensor(name)[index]`, reading no more than it needs to where the file allows that."""
        ...

    def read_int8(self, name: str, index: Index) -> np.ndarray:
        """The int8 values of one of `quantised`, at this index of the parameter."""
        ...

    def read_scale(self, name: str, index: Index) -> np.ndarray:
        """The float32 scales of one of `quantised`, at this index of its channels: of the dims that
        `partita.program.parameters.CHANNELS` lists for it."""
        ...


@dataclass(frozen=True)
class MemoryCheckpoint:
    """A checkpoint over arrays in memory, such as `random_parameters` makes.

    An int8 array is a quantised parameter; its scales are the array `{name}_scale`.
    """

    model: Model
    parameters: Mapping[str, np.ndarray]
    tokenizer: Tokenizer | None = None

    @property
    def eos_ids(self) -> Set[int]:
        return frozenset() if self.tokenizer is None else self.tokenizer.eos_ids

    @property
    def quantised(self) -> frozenset[str]:
        return frozenset(name for name, values in self.parameters.items() if values.dtype == np.int8)

    def tensor(self, name: str) -> np.ndarray:
        return self.read(name, ())

    def read(self, name: str, index: Index) -> np.ndarray:
        values = self.parameters[name]
        if values.dtype == np.int8:
            values = dequantise(name, values, self.parameters[scale_name(name)])
        return values[index]

    def read_int8(self, name: str, index: Index) -> np.ndarray:
        return self.parameters[name][index]

    def read_scale(self, name: str, index: Index) -> np.ndarray:
        return self.parameters[scale_name(name)][index]

    def in_int8(self) -> MemoryCheckpoint:
        """The same model with every matrix that `CHANNELS` lists quantised."""
        held: dict[str, np.ndarray] = {}
        for name in all_parameter_shapes(self.model):
            if is_quantisable(name):
                held[name], held[scale_name(name)] = quantise(name, self.tensor(name))
            else:
                held[name] = self.tensor(name)
        return MemoryCheckpoint(self.model, held, self.tokenizer)
