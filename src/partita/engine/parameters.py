"""Places a checkpoint's tensors on the mesh, padded and sharded; one copy for both phases.

A device's slice of a tensor is read as it is placed, so that the host never holds more than one parameter
beside what is placed; matrices in int8 are quantised then. Padding is zero, so that padded heads, hidden units
and vocabulary contribute nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from partita.checkpoints.protocol import Checkpoint
from partita.engine.shapes import Shapes


def place(
    shapes: Shapes, checkpoint: Checkpoint, progress: Callable[[int, int], None] | None = None
) -> dict[str, jax.Array]:
    """All parameters as arrays of `shapes.parameters()`; calls `progress(done, total)`."""
    placed = {}
    wanted = shapes.parameters()
    for done, (name, target) in enumerate(wanted.items(), start=1):
        tensor = checkpoint.tensor(name)
        host = np.zeros(target.shape, target.dtype)
        host[tuple(slice(n) for n in tensor.shape)] = tensor
        placed[name] = jax.make_array_from_callback(
            target.shape, target.sharding, lambda index, host=host: host[index]
        )
        if progress:
            progress(done, len(wanted))
    return placed
