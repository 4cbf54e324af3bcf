"""The safetensors container: named tensors in one file, read slice by slice with every length checked.

The header is parsed here: the safetensors library has no bfloat16 without torch or JAX, and says of a damaged
file only that it is one. Knows nothing about Transformers, nor about models split over several files.

Format: https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from partita.checkpoints.mapped import MappedFile
from partita.errors import InputError

FLOATS: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""The number formats of weights."""
_BITS = {
    **{"BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64},
    **{"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "C64": 64},
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
    **{name: 8 * dtype.itemsize for name, dtype in FLOATS.items()},
}
_MAX_HEADER = 100_000_000  # bytes; the format's own limit


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as the header lists it; `start` and `stop` count from the start of the file."""

    format: str
    shape: tuple[int, ...]
    start: int
    stop: int


class _Damaged(Exception):
    """The file is not a whole safetensors file; the message says in which way."""


class SafetensorsFile:
    """An open safetensors file: `tensors` by name, `array` for values.

    Raises InputError (field "model", value the path) for a file that cannot be read, is damaged or cut short.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            self._file = MappedFile(path)
            self.tensors = _read_header(self._file.bytes)
        except OSError as error:
            raise self._wrong(f"cannot be read ({error.strerror})") from None
        except ValueError:  # what mapping an empty file raises
            raise self._wrong("is empty") from None
        except _Damaged as damage:
            raise self._wrong(str(damage)) from None

    def array(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A slice of a tensor in float32, or in int8 where that is its format; a copy, nothing mapped."""
        tensor = self.tensors[name]
        dtype = np.dtype(np.int8) if tensor.format == "I8" else FLOATS[tensor.format]
        stored = self._file.bytes[tensor.start : tensor.stop].view(dtype).reshape(tensor.shape)
        values = stored[index].astype(np.int8 if dtype == np.int8 else np.float32, order="C")
        del stored
        self._file.let_go()
        return values

    def _wrong(self, message: str) -> InputError:
        return InputError("model", str(self.path), f"{message}; give a whole safetensors file")


def _read_header(data: np.ndarray) -> dict[str, StoredTensor]:
    size = len(data)
    length = int.from_bytes(data[:8].tobytes(), "little")
    if size < 8 or length > _MAX_HEADER:
        raise _Damaged("is not a safetensors file (it does not begin with the length of a header)")
    if 8 + length > size:
        raise _Damaged(f"ends after {size} bytes, inside its header of {length}")
    try:
        header = json.loads(data[8 : 8 + length].tobytes())
    except (ValueError, RecursionError):
        raise _Damaged("is damaged: its header is not valid JSON") from None
    if not isinstance(header, dict):
        raise _Damaged("is damaged: its header is not a JSON object")
    header.pop("__metadata__", None)
    tensors = {name: _read_entry(name, entry, 8 + length) for name, entry in header.items()}
    position = 8 + length
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if tensor.start != position:
            raise _Damaged(f"is damaged: tensor {name!r:.80} begins at byte {tensor.start}, not {position}")
        if tensor.stop > size:
            raise _Damaged(f"ends after {size} bytes, inside or before tensor {name!r:.80}")
        position = tensor.stop
    if position != size:
        raise _Damaged(f"is damaged: it has {size} bytes, and its header lists {position}")
    return tensors


def _read_entry(name: str, entry: Any, data_start: int) -> StoredTensor:
    damage = _Damaged(f"is damaged: its header does not say how tensor {name!r:.80} is stored")
    try:
        form, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise damage from None
    if not (isinstance(form, str) and all(type(n) is int and n >= 0 for n in (*shape, start, stop))):
        raise damage
    if form not in _BITS:
        raise _Damaged(f"stores tensor {name!r:.80} in the unknown number format {form!r:.20}")
    if 8 * (stop - start) != math.prod(shape) * _BITS[form]:
        raise _Damaged(f"is damaged: tensor {name!r:.80} of shape {shape} has {stop - start} bytes as {form}")
    return StoredTensor(form, shape, data_start + start, data_start + stop)
