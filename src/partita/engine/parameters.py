"""Places a checkpoint's tensors on the mesh, padded and sharded; one copy for both phases.

Of each parameter a process reads what its devices hold and no more, quantises it where the weights are int8,
and hands it on before it reads the next: the host never holds more than one parameter beside what is placed.
Padding is zero, so that padded heads, hidden units and vocabulary contribute nothing.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable

import jax
import numpy as np

from partita.checkpoints.int8 import channel_index, quantise
from partita.checkpoints.protocol import Checkpoint, Index, finite
from partita.engine.cache import Shapes
from partita.specs.parameters import Parameter, all_parameters, scale_name

_BLOCK = 1 << 20
"""Numbers of an embedding that are floats at a time on their way to int8: it may be larger than a layer."""


def place(
    shapes: Shapes, checkpoint: Checkpoint, progress: Callable[[int, int], None] | None = None
) -> dict[str, jax.Array]:
    """All parameters as arrays of `shapes.parameters()`; calls `progress(done, total)`, without scales.

    Raises InputError (field "model") for weights that are not finite, or not in the format they get.
    """
    targets, rows = shapes.parameters(), all_parameters(shapes.model)
    placed: dict[str, jax.Array] = {}
    for done, (name, row) in enumerate(rows.items(), start=1):
        target, scales = targets[name], targets.get(scale_name(name))
        box = _box(target, row.shape)
        if scales is None:
            placed[name] = _placed(target, finite(name, checkpoint.read(name, box), target.dtype), box)
        else:
            values, factors, box, own = _in_int8(checkpoint, row, box)
            placed[name] = _placed(target, values, box)
            placed[scale_name(name)] = _placed(scales, factors, own)
        gc.collect(0)  # JAX lets go of what it has copied from at a collection, and only then
        if progress:
            progress(done, len(rows))
    return placed


def _in_int8(
    checkpoint: Checkpoint, row: Parameter, box: Index
) -> tuple[np.ndarray, np.ndarray, Index, Index]:
    """int8 values of at least a box of a parameter, their scales, and the boxes that these are."""
    own = channel_index(row, box)
    if row.name in checkpoint.quantised:
        scale = finite(scale_name(row.name), checkpoint.read_scale(row.name, own), np.float32)
        return checkpoint.read_int8(row.name, box), scale, box, own
    # a scale is of all that its channel sums, whichever part of it is held here
    whole = {axis: slice(0, row.shape[axis]) for axis in row.summed_axes}
    box = tuple(whole.get(axis, part) for axis, part in enumerate(box))
    return *_quantised(checkpoint, row, box), box, own


def _quantised(checkpoint: Checkpoint, row: Parameter, box: Index) -> tuple[np.ndarray, np.ndarray]:
    """int8 values and scales of a box; where a row is a channel, as in an embedding, by blocks of rows."""
    first, last = box[0].start, box[0].stop
    if 0 in row.summed_axes:
        return quantise(row, checkpoint.read(row.name, box))
    rows = max(1, _BLOCK // max(1, math.prod(part.stop - part.start for part in box[1:])))
    parts = [
        quantise(row, checkpoint.read(row.name, (slice(start, min(start + rows, last)), *box[1:])))
        for start in range(first, max(last, first + 1), rows)
    ]
    return np.concatenate([values for values, _ in parts]), np.concatenate([scale for _, scale in parts])


def _box(target: jax.ShapeDtypeStruct, size: tuple[int, ...]) -> Index:
    """The smallest box of an unpadded array that has all that this process's devices hold of it."""
    parts = _held(target)
    starts = [min(part[axis].start or 0 for part in parts) for axis in range(len(size))]
    ends = [
        max(whole if part[axis].stop is None else part[axis].stop for part in parts)
        for axis, whole in enumerate(target.shape)
    ]
    return tuple(slice(min(start, n), min(end, n)) for start, end, n in zip(starts, ends, size, strict=True))


def _held(target: jax.ShapeDtypeStruct) -> list[Index]:
    found = target.sharding.addressable_devices_indices_map(target.shape).values()
    return [index for index in found if index is not None]


def _placed(target: jax.ShapeDtypeStruct, values: np.ndarray, box: Index) -> jax.Array:
    """An array of which a process knows the values of a box; all else that it holds is padding."""

    def part(index: Index | None) -> np.ndarray:
        index = index or ()
        shape = [len(range(*one.indices(n))) for one, n in zip(index, target.shape, strict=True)]
        found = np.zeros(shape, target.dtype)
        into, source = [], []
        for axis, one in enumerate(index):
            start, (low, high) = one.start or 0, (box[axis].start, box[axis].stop)
            first, last = max(start, low), max(min(start + shape[axis], high), max(start, low))
            into.append(slice(first - start, last - start))
            source.append(slice(first - low, last - low))
        found[tuple(into)] = values[tuple(source)]
        return found

    placed = jax.make_array_from_callback(target.shape, target.sharding, part)
    return jax.block_until_ready(placed)  # the host's copies can go
