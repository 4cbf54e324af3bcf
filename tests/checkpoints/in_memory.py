"""Checkpoints in memory as tests need them: one in int8, made from one in float32."""

import numpy as np

from partita.checkpoints.int8 import quantise
from partita.checkpoints.protocol import MemoryCheckpoint
from partita.specs.parameters import all_parameters, scale_name


def in_int8(checkpoint: MemoryCheckpoint) -> MemoryCheckpoint:
    """The same model with every matrix in int8 that int8 weights quantise."""
    arrays: dict[str, np.ndarray] = {}
    for name, parameter in all_parameters(checkpoint.model).items():
        if parameter.quantisable:
            arrays[name], arrays[scale_name(name)] = quantise(parameter, checkpoint.read(name))
        else:
            arrays[name] = checkpoint.read(name)
    return MemoryCheckpoint(checkpoint.model, arrays, checkpoint.tokenizer)
