"""The GGUF container: metadata and named tensors in one file, read with every length checked.

The header is parsed here rather than by `gguf.GGUFReader`, which takes seconds over a vocabulary and trusts
the lengths in the file; the `gguf` library gives the number formats and their dequantisation.
Knows nothing about Transformers: what the keys and tensors mean is for others.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from partita.checkpoints.mapped import MappedFile
from partita.errors import InputError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 4
_BLOCK = 1 << 20  # numbers that are dequantised at a time


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as the file lists it: row-major shape, number format, and where its bytes lie."""

    shape: tuple[int, ...]
    format: GGMLQuantizationType
    offset: int
    bytes: int

    @property
    def row_bytes(self) -> int:
        return self.bytes // math.prod(self.shape[:-1])


class _Damaged(Exception):
    """The file is not a whole GGUF file; the message says in which way."""


class GGUFFile:
    """An open GGUF file: `metadata` by key, `tensors` by name, and `array(name)` for the values.

    Raises InputError (field "model", value the path) for a file that cannot be read, is not GGUF version
    2 or 3, is damaged or cut short, or holds a number format that cannot be dequantised.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            self._file = MappedFile(self.path)
        except OSError as error:
            raise self._wrong(f"cannot be read ({error.strerror}); give a .gguf file") from None
        except ValueError:  # what mapping an empty file raises
            raise self._wrong("is empty; give a .gguf file") from None
        try:
            self.metadata, self.tensors = _read_header(self._file.bytes.data)
        except _Damaged as damage:
            raise self._wrong(f"{damage}; give a whole .gguf file (GGUF version 2 or 3)") from None

    def array(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        """The values of one tensor at an index of its row-major shape, dequantised to float32.

        Whole rows are read, for that is how number formats pack them.
        """
        tensor = self.tensors[name]
        stored = self._file.bytes[tensor.offset : tensor.offset + tensor.bytes]
        *before, within = (*index, *(slice(None),) * (len(tensor.shape) - len(index)))
        packed = stored.reshape(*tensor.shape[:-1], tensor.row_bytes)[tuple(before)]
        rows = packed.reshape(-1, tensor.row_bytes)
        values = np.empty((len(rows), tensor.shape[-1]), np.float32)
        block = max(1, _BLOCK // tensor.shape[-1])
        for start in range(0, len(rows), block):  # what dequantising needs on the way stays small
            part = slice(start, start + block)
            values[part] = dequantize(rows[part], tensor.format)
        del stored, packed, rows
        self._file.let_go()
        shape = [len(range(n)[part]) for n, part in zip(tensor.shape, before, strict=False)]
        return values.reshape(*shape, tensor.shape[-1])[..., within]

    def _wrong(self, message: str) -> InputError:
        return InputError("model", str(self.path), message)


class _Cursor:
    """Reads little-endian values one after another; raises _Damaged rather than run past the end."""

    def __init__(self, data: memoryview):
        self.data = data
        self.position = 0
        self.part = "the header"

    def take(self, size: int) -> memoryview:
        end = self.position + size
        if end > len(self.data):
            raise _Damaged(f"ends after {len(self.data)} bytes, inside {self.part}")
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def numbers(self, kind: str, count: int = 1) -> tuple:
        size = struct.calcsize("<" + kind)
        return struct.unpack(f"<{count}{kind}", self.take(size * count))

    def number(self, kind: str) -> int:
        return self.numbers(kind)[0]

    def text(self) -> str:
        raw = bytes(self.take(self.number("Q")))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise _Damaged(f"is damaged: a string in {self.part} is not UTF-8") from None

    def value(self, kind: int) -> object:
        if kind in _SCALARS:
            return self.numbers(_SCALARS[kind])[0]
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            raise _Damaged(f"is damaged: {self.part} holds a value of unknown type {kind}")
        element, count = self.number("I"), self.number("Q")
        if element in _SCALARS:
            return list(self.numbers(_SCALARS[element], count))
        if element == _STRING:
            return [self.text() for _ in range(count)]
        raise _Damaged(f"is damaged: {self.part} holds an array of unknown type {element}")


def _read_header(data: memoryview) -> tuple[dict[str, object], dict[str, StoredTensor]]:
    cursor = _Cursor(data)
    if bytes(data[:4]) != b"GGUF":
        raise _Damaged("is not a GGUF file (it does not begin with GGUF)")
    cursor.take(4)
    version = cursor.number("I")
    if version not in (2, 3):
        raise _Damaged(
            "is a big-endian GGUF file" if version & 0xFFFF == 0 else f"has GGUF version {version}"
        )
    tensor_count, key_count = cursor.numbers("Q", 2)

    metadata: dict[str, object] = {}
    cursor.part = "the metadata"
    for _ in range(key_count):
        key = cursor.text()
        if key in metadata:
            raise _Damaged(f"is damaged: the metadata holds {key!r:.80} twice")
        metadata[key] = cursor.value(cursor.number("I"))

    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise _Damaged(f"is damaged: general.alignment is {alignment!r}, not a power of two")

    cursor.part = "the list of tensors"
    tensors: dict[str, StoredTensor] = {}
    for _ in range(tensor_count):
        name = cursor.text()
        if name in tensors:
            raise _Damaged(f"is damaged: tensor {name!r:.80} is listed twice")
        tensors[name] = _read_tensor(cursor, name)
    return metadata, _place(tensors, _aligned(cursor.position, alignment), alignment, len(data))


def _read_tensor(cursor: _Cursor, name: str) -> StoredTensor:
    """One entry of the list of tensors, its offset still counted from the start of the data."""
    dims = cursor.number("I")
    if not 1 <= dims <= _MAX_DIMS:
        raise _Damaged(f"is damaged: tensor {name!r:.80} has {dims} dimensions")
    shape = tuple(reversed(cursor.numbers("Q", dims)))
    number = cursor.number("I")
    offset = cursor.number("Q")
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise _Damaged(f"stores tensor {name!r:.80} in unknown number format {number}") from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if math.prod(shape) == 0 or shape[-1] % block:
        raise _Damaged(f"is damaged: tensor {name!r:.80} has shape {shape} in format {kind.name}")
    if not _can_dequantize(kind):
        raise _Damaged(f"stores tensor {name!r:.80} as {kind.name}, which cannot be dequantised")
    return StoredTensor(shape, kind, offset, math.prod(shape) // block * block_bytes)


def _can_dequantize(kind: GGMLQuantizationType) -> bool:
    """Whether the `gguf` library dequantises this format, tried on one block of zeros."""
    try:
        with np.errstate(all="ignore"):
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _place(
    tensors: dict[str, StoredTensor], start: int, alignment: int, size: int
) -> dict[str, StoredTensor]:
    """The tensors with offsets from the start of the file; each must begin where the one before ended."""
    placed: dict[str, StoredTensor] = {}
    position = 0
    for name, tensor in tensors.items():
        if tensor.offset != position:
            raise _Damaged(f"is damaged: tensor {name!r:.80} lies at {tensor.offset}, expected {position}")
        if start + position + tensor.bytes > size:
            raise _Damaged(f"ends after {size} bytes, inside or before tensor {name!r:.80}")
        placed[name] = StoredTensor(tensor.shape, tensor.format, start + position, tensor.bytes)
        position = _aligned(position + tensor.bytes, alignment)
    return placed


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
