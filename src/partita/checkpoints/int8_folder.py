"""Writes any checkpoint as a folder that has its matrices in int8: `partita quantize`.

It is written parameter by parameter, a tall one by blocks of rows, so that no more than one is in memory, and
beside its place, to be renamed when it is whole. `folder.py` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np

from partita.checkpoints.container import Index
from partita.checkpoints.folder import write_partita_json
from partita.checkpoints.int8 import quantise
from partita.checkpoints.protocol import Checkpoint, finite
from partita.checkpoints.safetensors import SHARD_BYTES, TensorToWrite, write_tensors
from partita.checkpoints.tokenizer_files import write_end_tokens, write_tokenizer
from partita.errors import InputError
from partita.files import check_place, whole_folder
from partita.specs.parameters import Parameter, all_parameters, scale_name

_BLOCK = 1 << 20  # numbers of a parameter that are read at a time, where its rows are its channels


def check_out(out: Path) -> None:
    """Raises InputError (field "out") where nothing could be written, or something is already."""
    if out.exists() or out.is_symlink():
        raise InputError("out", out, "is there already; give the path of a folder to make")
    check_place(out, "out")


def write_int8(
    checkpoint: Checkpoint,
    out: Path,
    dtype: str = "bf16",
    progress: Callable[[int, int], None] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> int:
    """Writes the folder `out`, which must not exist, and returns the bytes of its weights.

    dtype: the format of what is not quantised, "bf16" or "f32". progress: called with the number of
    parameters done and of all. What is int8 in the checkpoint already is copied as it is.

    Raises InputError (field "out") where it cannot be written, and (field "model") for weights that are not
    finite; then, or when killed, nothing is at `out`.
    """
    check_out(out)
    tensors = _tensors(checkpoint, dtype, progress)
    with whole_folder(out, "out") as folder:
        write_partita_json(folder, checkpoint.model)
        if checkpoint.tokenizer_error is None and checkpoint.tokenizer is not None:
            write_tokenizer(checkpoint.tokenizer, folder)
        else:
            write_end_tokens(checkpoint.eos_ids, folder)
        write_tensors(folder, tensors, shard_bytes)
    return sum(tensor.bytes for tensor in tensors)


def most_bytes(checkpoint: Checkpoint) -> int:
    """Bytes of memory that writing takes, at most: of the parameter that takes most, each number of it in
    float32 as it is stored, in float32 as it is divided by its scale, and in int8."""
    rows = all_parameters(checkpoint.model)
    return max(9 * row.count if row.quantisable and not _by_rows(row) else 0 for row in rows.values())


def _tensors(
    checkpoint: Checkpoint, dtype: str, progress: Callable[[int, int], None] | None
) -> list[TensorToWrite]:
    """The tensors to write; the scales of a parameter come right after it, for quantising finds them."""
    tensors: list[TensorToWrite] = []
    rows = all_parameters(checkpoint.model)
    for done, (name, row) in enumerate(rows.items(), 1):
        tell = partial(progress, done, len(rows)) if progress else lambda: None
        if row.quantisable:
            tensors += _quantised(checkpoint, row, tell)
        else:
            given = checkpoint, name, dtype, tell
            tensors.append(TensorToWrite(name, row.shape, dtype, partial(_floats, *given)))
    return tensors


def _floats(checkpoint: Checkpoint, name: str, dtype: str, tell: Callable[[], None]) -> Iterator[np.ndarray]:
    yield finite(name, checkpoint.read(name), ml_dtypes.bfloat16 if dtype == "bf16" else np.float32)
    tell()


def _quantised(checkpoint: Checkpoint, row: Parameter, tell: Callable[[], None]) -> list[TensorToWrite]:
    """The int8 values of a parameter and, after them, the scales found on the way."""
    name = row.name
    scales: list[np.ndarray] = []

    def values() -> Iterator[np.ndarray]:
        for index in _blocks(row):
            if name in checkpoint.quantised:
                yield checkpoint.read_int8(name, index)
            else:
                whole, scale = quantise(row, checkpoint.read(name, index))
                scales.append(scale)
                yield whole

    def found() -> Iterator[np.ndarray]:
        found = checkpoint.read_scale(name) if name in checkpoint.quantised else np.concatenate(scales)
        yield finite(scale_name(name), found, np.float32)
        scales.clear()
        tell()

    return [
        TensorToWrite(name, row.shape, "int8", values),
        TensorToWrite(scale_name(name), row.scale_shape, "f32", found),
    ]


def _by_rows(row: Parameter) -> bool:
    """Whether each row is a channel."""
    return row.channels == row.dims[0]


def _blocks(row: Parameter) -> Iterator[Index]:
    """Indices that together are the parameter: blocks of rows where each row is a channel, else all of it."""
    shape = row.shape
    if not _by_rows(row):
        yield (slice(None),) * len(shape)
        return
    rows = max(1, _BLOCK * shape[0] // max(1, row.count))
    for start in range(0, shape[0], rows):
        yield (slice(start, start + rows), *(slice(None),) * (len(shape) - 1))
