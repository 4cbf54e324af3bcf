"""Writes tensors to safetensors files, each in pieces of any size, so that none need be in memory whole.

A header lists every tensor before the first of them, so what will be written is planned first. Knows nothing
about Transformers.

Format: https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from partita.checkpoints.safetensors_folder import INDEX, SINGLE

SHARD_BYTES = 2_000_000_000
_FORMATS = {
    "f32": ("F32", np.dtype(np.float32)),
    "bf16": ("BF16", np.dtype(ml_dtypes.bfloat16)),
    "int8": ("I8", np.dtype(np.int8)),
}


@dataclass(frozen=True)
class Planned:
    """A tensor to write: `pieces` gives its values, in order, when they are due."""

    name: str
    shape: tuple[int, ...]
    format: str
    """"f32", "bf16" or "int8"."""
    pieces: Callable[[], Iterable[np.ndarray]]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * _FORMATS[self.format][1].itemsize


def write_tensors(folder: Path, planned: Sequence[Planned], shard_bytes: int = SHARD_BYTES) -> None:
    """Writes the tensors, in this order, to one file of the folder, or to several of at most `shard_bytes`
    with an index; a larger tensor has a file of its own. All is on the disk when it returns."""
    shards = _shards(planned, shard_bytes)
    count = len(shards)
    places: dict[str, str] = {}
    for i, shard in enumerate(shards):
        name = SINGLE if count == 1 else f"model-{i + 1:05}-of-{count:05}.safetensors"
        _write_file(folder / name, shard)
        places |= {tensor.name: name for tensor in shard}
    if count > 1:
        total = sum(tensor.bytes for tensor in planned)
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(planned: Sequence[Planned], limit: int) -> list[list[Planned]]:
    shards: list[list[Planned]] = [[]]
    size = 0
    for tensor in planned:
        if shards[-1] and size + tensor.bytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.bytes
    return shards


def _write_file(path: Path, shard: Sequence[Planned]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "np"}}
    position = 0
    for tensor in shard:
        offsets = [position, position + tensor.bytes]
        form, _ = _FORMATS[tensor.format]
        header[tensor.name] = {"dtype": form, "shape": list(tensor.shape), "data_offsets": offsets}
        position = offsets[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data is aligned
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in shard:
            _, dtype = _FORMATS[tensor.format]
            written = sum(
                file.write(np.ascontiguousarray(piece, dtype).view(np.uint8).data)
                for piece in tensor.pieces()
            )
            assert written == tensor.bytes, tensor.name
        file.flush()
        os.fsync(file.fileno())
