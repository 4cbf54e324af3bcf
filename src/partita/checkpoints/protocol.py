"""The interface of checkpoints and its two implementations: over files, and over arrays in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from partita.checkpoints.container import Index
from partita.checkpoints.int8 import channel_index, dequantise
from partita.checkpoints.sources import ReadStored, Source
from partita.errors import InputError
from partita.specs.model import Model
from partita.specs.parameters import Parameter, all_parameters, scale_name

if TYPE_CHECKING:  # the tokenizers library and jinja2 are imported where a tokenizer is read
    from partita.checkpoints.tokenizer import Tokenizer


class Checkpoint(Protocol):
    """A model with its parameters by name, as `partita.specs.parameters` has them, read slice by slice."""

    @property
    def model(self) -> Model: ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None where the checkpoint holds no tokenizer. Raises InputError for one that is not understood."""
        ...

    @property
    def tokenizer_error(self) -> InputError | None:
        """Why `tokenizer` cannot be had, where it is one that is not understood."""
        ...

    @property
    def eos_ids(self) -> Set[int]:
        """The tokens that end a text."""
        ...

    @property
    def sampling(self) -> Mapping[str, float]:
        """How it asks to be sampled from, where a request leaves it open: fields of `Sampling`."""
        ...

    @property
    def quantised(self) -> frozenset[str]:
        """Names of the parameters that are held as int8, such as "layers.0.q"; empty for most checkpoints."""
        ...

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """The float32 values of one parameter at an index of its unpadded shape, dequantised where they are
        int8; no more is read than that needs, where the file allows it."""
        ...

    def read_int8(self, name: str, index: Index = ()) -> np.ndarray:
        """The int8 values of one of `quantised`, at this index of the parameter."""
        ...

    def read_scale(self, name: str, index: Index = ()) -> np.ndarray:
        """The float32 scales of one of `quantised`, at this index of its channels."""
        ...


def finite(name: str, values: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """The float32 values of a parameter that is to be kept in a floating-point format.

    Raises InputError (field "model") where one of them is infinite, no number, or more than the format holds.
    """
    if not values.size:
        return values
    least, most = float(values.min()), float(values.max())  # both NaN where there is one
    largest, limit = max(-least, most), float(ml_dtypes.finfo(dtype).max)
    if not math.isfinite(least) or not math.isfinite(most):
        raise InputError("model", name, "holds numbers that are not finite")
    if largest > limit:
        found = f"holds {largest:.6g}, more than {np.dtype(dtype).name} does (up to {limit:.6g})"
        raise InputError("model", name, found)
    return values


def _dequantised(checkpoint: Checkpoint, name: str, index: Index) -> np.ndarray:
    row = all_parameters(checkpoint.model)[name]
    scale = checkpoint.read_scale(name, channel_index(row, index))
    return dequantise(row, checkpoint.read_int8(name, index), scale)


@dataclass(frozen=True, eq=False)
class StoredCheckpoint:
    """A checkpoint in files, which are read as its parameters are asked for."""

    model: Model
    sources: Mapping[str, Source]
    """The place of each parameter in the stored tensors, by its name."""
    read_stored: ReadStored
    load_tokenizer: Callable[[], Tokenizer | None]
    """Called once, when the tokenizer is first asked for. Gives None where there is none, and raises
    InputError for a kind that is not read."""
    scales: Mapping[str, Source] = field(default_factory=dict)
    """The place of the scales of each parameter in int8, by the parameter's name."""
    load_eos_ids: Callable[[], Set[int]] = frozenset
    """Gives the tokens that end a text where there is no tokenizer to say so."""
    load_sampling: Callable[[], Mapping[str, float]] = dict
    """Gives how it asks to be sampled from; raises InputError for what is no such setting."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        if isinstance(self._tokenizer, InputError):
            raise self._tokenizer
        return self._tokenizer

    @property
    def tokenizer_error(self) -> InputError | None:
        return self._tokenizer if isinstance(self._tokenizer, InputError) else None

    @cached_property
    def _tokenizer(self) -> Tokenizer | InputError | None:
        try:
            return self.load_tokenizer()
        except InputError as error:  # stops only what needs text
            return error

    @property
    def eos_ids(self) -> Set[int]:
        found = self._tokenizer
        return self.load_eos_ids() if found is None or isinstance(found, InputError) else found.eos_ids

    @property
    def sampling(self) -> Mapping[str, float]:
        return self.load_sampling()

    @property
    def quantised(self) -> frozenset[str]:
        return frozenset(self.scales)

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        if name in self.scales:
            return _dequantised(self, name, index)
        return self.sources[name].read(self.read_stored, index)

    def read_int8(self, name: str, index: Index = ()) -> np.ndarray:
        return self.sources[name].read(self.read_stored, index, np.int8)

    def read_scale(self, name: str, index: Index = ()) -> np.ndarray:
        return self.scales[name].read(self.read_stored, index)


@dataclass(frozen=True)
class MemoryCheckpoint:
    """A checkpoint over arrays in memory, such as `random_parameters` makes.

    An int8 array is a quantised parameter; its scales are the array `{name}_scale`.
    """

    model: Model
    parameters: Mapping[str, np.ndarray]
    tokenizer: Tokenizer | None = None

    @property
    def tokenizer_error(self) -> InputError | None:
        return None

    @property
    def eos_ids(self) -> Set[int]:
        return frozenset() if self.tokenizer is None else self.tokenizer.eos_ids

    @property
    def sampling(self) -> Mapping[str, float]:
        return {}

    @property
    def quantised(self) -> frozenset[str]:
        return frozenset(name for name, values in self.parameters.items() if values.dtype == np.int8)

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        if self.parameters[name].dtype == np.int8:
            return _dequantised(self, name, index)
        return self.parameters[name][index]

    def read_int8(self, name: str, index: Index = ()) -> np.ndarray:
        return self.parameters[name][index]

    def read_scale(self, name: str, index: Index = ()) -> np.ndarray:
        return self.parameters[scale_name(name)][index]


def random_parameters(model: Model, seed: int) -> dict[str, np.ndarray]:
    """Random values for every parameter of a model, in float32; the same seed gives the same values.

    They are for tests, and for timing a model without its weights. Matrices are normal with standard
    deviation 1/sqrt(fan-in), so activations and logits stay near 1. Norm scales are 1 and biases 0, each
    plus a tenth of a normal number: a program that forgets either gives other logits.
    """
    generator = np.random.default_rng(seed)
    parameters = {}
    for name, row in all_parameters(model).items():
        values = generator.standard_normal(row.shape, dtype=np.float32)
        if row.role == "norm":
            values *= np.float32(0.1)
            values[0] += 1
        else:
            values *= np.float32(1 / math.sqrt(_fan_in(row)))
        parameters[name] = values
    return parameters


def _fan_in(row: Parameter) -> int:
    """How many numbers each output of a matrix sums; an embedding counts as the unembedding it may be."""
    return math.prod(row.shape[axis] for axis in row.summed_axes) if row.quantisable else row.shape[0]
