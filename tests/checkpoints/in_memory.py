"""Checkpoints in memory as tests need them: one in int8, made from one in float32."""

import numpy as np

from partita.checkpoints.dims import is_quantisable
from partita.checkpoints.int8 import quantise
from partita.checkpoints.protocol import MemoryCheckpoint
from partita.program.parameters import all_parameter_shapes, scale_name


def in_int8(checkpoint: MemoryCheckpoint) -> MemoryCheckpoint:
    """The same model with every matrix that `CHANNELS` lists quantised."""
    arrays: dict[str, np.ndarray] = {}
    for name in all_parameter_shapes(checkpoint.model):
        if is_quantisable(name):
            arrays[name], arrays[scale_name(name)] = quantise(name, checkpoint.read(name))
        else:
            arrays[name] = checkpoint.read(name)
    return MemoryCheckpoint(checkpoint.model, arrays, checkpoint.tokenizer)
