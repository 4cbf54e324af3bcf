"""The GGUF format: metadata and named tensors in one file, read with every length checked.

The header is parsed here rather than by `gguf.GGUFReader`, which takes seconds over a vocabulary and trusts
the lengths in the file; the `gguf` library gives the number formats and their dequantisation.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from partita.checkpoints.container import Damaged, Index, MappedFile, StoredTensor
from partita.errors import InputError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 4
_BLOCK = 1 << 17  # numbers that are dequantised at a time: few enough for a cache


class GGUFFile:
    """An open GGUF file: `metadata` by key, `tensors` by name, and `read` for the values of one.

    Raises InputError (field "model", value the path) for a file that cannot be read, is not GGUF version
    2 or 3, is damaged or cut short, or holds a number format that cannot be dequantised.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            self._file = MappedFile(self.path)
        except Damaged as damage:
            raise self._wrong(f"{damage}; give a .gguf file") from None
        try:
            metadata, self.tensors = _read_header(self._file.bytes.data)
        except Damaged as damage:
            raise self._wrong(f"{damage}; give a whole .gguf file (GGUF version 2 or 3)") from None
        self.metadata = Metadata(metadata, self.path)
        self.shapes = {name: tensor.shape for name, tensor in self.tensors.items()}

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """The values of one tensor at an index of its row-major shape, dequantised to float32.

        Whole rows are read, for that is how number formats pack them.
        """
        tensor = self.tensors[name]
        stored = self._file.bytes[tensor.start : tensor.stop]
        *before, within = (*index, *(slice(None),) * (len(tensor.shape) - len(index)))
        row_bytes = (tensor.stop - tensor.start) // math.prod(tensor.shape[:-1])
        packed = stored.reshape(*tensor.shape[:-1], row_bytes)[tuple(before)]
        rows = packed.reshape(-1, row_bytes)
        values = np.empty((len(rows), tensor.shape[-1]), np.float32)
        block = max(1, _BLOCK // tensor.shape[-1])
        for start in range(0, len(rows), block):  # what dequantising needs on the way stays small
            part = slice(start, start + block)
            # as one long row: the library takes 16 rows at a time, which is slow for short ones
            found = dequantize(rows[part].reshape(1, -1), GGMLQuantizationType[tensor.format])
            values[part] = found.reshape(-1, tensor.shape[-1])
        del stored, packed, rows
        self._file.let_go()
        shape = [len(range(n)[part]) for n, part in zip(tensor.shape, before, strict=False)]
        return values.reshape(*shape, tensor.shape[-1])[..., within]

    def _wrong(self, message: str) -> InputError:
        return InputError("model", str(self.path), message)


class Metadata:
    """The metadata of a file, looked up by key and checked for their type.

    A look-up raises InputError (field the key) for a value of another type. Where the key is absent it gives
    `default`, and without one raises InputError; `get` gives None. prefix: what every key begins with, which
    look-ups leave out.
    """

    def __init__(self, values: Mapping[str, object], path: Path, prefix: str = ""):
        self._values = values
        self._prefix = prefix
        self.path = path

    def under(self, prefix: str) -> Metadata:
        """The keys that begin with this prefix, looked up without it."""
        return Metadata(self._values, self.path, prefix)

    def __contains__(self, key: str) -> bool:
        return self._prefix + key in self._values

    def __iter__(self) -> Iterator[str]:
        """The keys, without their prefix."""
        return (key.removeprefix(self._prefix) for key in self._values if key.startswith(self._prefix))

    def get(self, key: str, default: object = None) -> object:
        return self._values.get(self._prefix + key, default)

    def wrong(self, key: str, message: str) -> InputError:
        """The error for this key's value; the message says what would be accepted."""
        return InputError(self._prefix + key, _brief(self.get(key)), f"{message} (in {self.path})")

    def integer(self, key: str, default: int | None = None, least: int = 0) -> int:
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(key, f"must be one whole number of at least {least}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0. Stored in float32, and given back as the decimal number that was meant."""
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 1e-37 < value < 1e37:
            raise self.wrong(key, "must be one finite number above 0")
        return float(str(np.float32(value)))

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "must be true or false")
        return value

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "must be text")
        return value

    def texts(self, key: str) -> list[str]:
        value = self.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "must be a list of texts")
        return value

    def numbers(self, key: str, count: int) -> np.ndarray:
        """A list of `count` numbers, none of them NaN."""
        value = self.get(key)
        if not isinstance(value, list) or not all(type(item) in (int, float) for item in value):
            raise self.wrong(key, "must be a list of numbers")
        numbers = np.array(value, np.float64)
        if len(numbers) != count or np.isnan(numbers).any():
            raise self.wrong(key, f"must be {count} numbers")
        return numbers

    def integers(self, key: str) -> list[int]:
        value = self.get(key)
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self.wrong(key, "must be a list of whole numbers")
        return value


def _brief(value: object) -> object:
    """A value fit for one line: "missing" for none, the start of a long one."""
    if value is None:
        return "missing"
    text = repr(value[:4] if isinstance(value, list) else value)
    return text if len(text) <= 60 else text[:57] + "..."


class _Cursor:
    """Reads little-endian values one after another; raises Damaged rather than run past the end."""

    def __init__(self, data: memoryview):
        self.data = data
        self.position = 0
        self.part = "the header"

    def take(self, size: int) -> memoryview:
        end = self.position + size
        if end > len(self.data):
            raise Damaged(f"ends after {len(self.data)} bytes, inside {self.part}")
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def numbers(self, kind: str, count: int = 1) -> tuple[Any, ...]:
        size = struct.calcsize("<" + kind)
        return struct.unpack(f"<{count}{kind}", self.take(size * count))

    def number(self, kind: str) -> int:
        return self.numbers(kind)[0]

    def text(self) -> str:
        raw = bytes(self.take(self.number("Q")))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise Damaged(f"is damaged: a string in {self.part} is not UTF-8") from None

    def value(self, kind: int) -> object:
        if kind in _SCALARS:
            return self.numbers(_SCALARS[kind])[0]
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            raise Damaged(f"is damaged: {self.part} holds a value of unknown type {kind}")
        element, count = self.number("I"), self.number("Q")
        if element in _SCALARS:
            return list(self.numbers(_SCALARS[element], count))
        if element == _STRING:
            return [self.text() for _ in range(count)]
        raise Damaged(f"is damaged: {self.part} holds an array of unknown type {element}")


def _read_header(data: memoryview) -> tuple[dict[str, object], dict[str, StoredTensor]]:
    cursor = _Cursor(data)
    if bytes(data[:4]) != b"GGUF":
        raise Damaged("is not a GGUF file (it does not begin with GGUF)")
    cursor.take(4)
    version = cursor.number("I")
    if version not in (2, 3):
        raise Damaged("is a big-endian GGUF file" if version & 0xFFFF == 0 else f"has GGUF version {version}")
    tensor_count, key_count = cursor.numbers("Q", 2)

    metadata: dict[str, object] = {}
    cursor.part = "the metadata"
    for _ in range(key_count):
        key = cursor.text()
        if key in metadata:
            raise Damaged(f"is damaged: the metadata holds {key!r:.80} twice")
        metadata[key] = cursor.value(cursor.number("I"))

    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise Damaged(f"is damaged: general.alignment is {alignment!r}, not a power of two")

    cursor.part = "the list of tensors"
    tensors: dict[str, StoredTensor] = {}
    for _ in range(tensor_count):
        name = cursor.text()
        if name in tensors:
            raise Damaged(f"is damaged: tensor {name!r:.80} is listed twice")
        tensors[name] = _read_tensor(cursor, name)
    return metadata, _place(tensors, _aligned(cursor.position, alignment), alignment, len(data))


def _read_tensor(cursor: _Cursor, name: str) -> StoredTensor:
    """One entry of the list of tensors, its bytes still counted from the start of the data."""
    dims = cursor.number("I")
    if not 1 <= dims <= _MAX_DIMS:
        raise Damaged(f"is damaged: tensor {name!r:.80} has {dims} dimensions")
    shape = tuple(reversed(cursor.numbers("Q", dims)))
    number = cursor.number("I")
    offset = cursor.number("Q")
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise Damaged(f"stores tensor {name!r:.80} in unknown number format {number}") from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if math.prod(shape) == 0 or shape[-1] % block:
        raise Damaged(f"is damaged: tensor {name!r:.80} has shape {shape} in format {kind.name}")
    if not _can_dequantize(kind):
        raise Damaged(f"stores tensor {name!r:.80} as {kind.name}, which cannot be dequantised")
    return StoredTensor(shape, kind.name, offset, offset + math.prod(shape) // block * block_bytes)


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
        if tensor.start != position:
            raise Damaged(f"is damaged: tensor {name!r:.80} lies at {tensor.start}, expected {position}")
        if start + tensor.stop > size:
            raise Damaged(f"ends after {size} bytes, inside or before tensor {name!r:.80}")
        placed[name] = replace(tensor, start=start + tensor.start, stop=start + tensor.stop)
        position = _aligned(tensor.stop, alignment)
    return placed


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
