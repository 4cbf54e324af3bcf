"""Places a checkpoint's tensors on the mesh, padded and sharded; one copy for both phases.

Each device's slice is cut from the tensor as the checkpoint yields it; padding is zero, so that padded
heads, hidden units and vocabulary contribute nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from partita.checkpoints.protocol import Checkpoint
from partita.engine.programs import Programs


def place(
    programs: Programs, checkpoint: Checkpoint, progress: Callable[[int, int], None] | None = None
) -> dict[str, jax.Array]:
    """All parameters as arrays of `programs.parameters()`'s shapes; calls `progress(done, total)`."""
    placed = {}
    wanted = programs.parameters()
    total = sum(programs.model.layers if name in programs.layer_names else 1 for name in wanted)
    done = 0
    for name, target in wanted.items():
        host = np.zeros(target.shape, target.dtype)
        stacked = name in programs.layer_names
        for index in range(programs.model.layers if stacked else 1):
            tensor = checkpoint.tensor(f"layers.{index}.{name}" if stacked else name)
            into = host[index] if stacked else host
            into[tuple(slice(n) for n in tensor.shape)] = tensor
            done += 1
            if progress:
                progress(done, total)
        # bound now, not when called: `host` is rebound by the next parameter
        placed[name] = jax.make_array_from_callback(
            target.shape, target.sharding, lambda index, host=host: host[index]
        )
    return placed
