"""The safetensors format: the named tensors of a folder, in one file or in several with an index.

They are read slice by slice with every length checked, and written piece by piece, so that no tensor need be
in memory whole. The header is parsed here: the safetensors library has no bfloat16 without torch or JAX, and
says of a damaged file only that it is one.

Format: https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from partita.checkpoints.container import Damaged, Index, MappedFile, StoredTensor, first_few
from partita.errors import InputError
from partita.specs.hugging_face.config import load

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD_BYTES = 2_000_000_000

FLOATS: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""The number formats of weights."""
_DTYPES = {**FLOATS, "I8": np.dtype(np.int8)}
_BITS = {
    **{"BOOL": 8, "U8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64},
    **{"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "C64": 64},
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
    **{name: 8 * dtype.itemsize for name, dtype in _DTYPES.items()},
}
_WRITTEN = {"f32": "F32", "bf16": "BF16", "int8": "I8"}
_MAX_HEADER = 100_000_000  # bytes; the format's own limit


class SafetensorsFile:
    """An open safetensors file: `tensors` by name, and `read` for values.

    Raises InputError (field "model", value the path) for a file that cannot be read, is damaged or cut short.
    """

    def __init__(self, path: Path):
        try:
            self._file = MappedFile(path)
            self.tensors = _read_header(self._file.bytes)
        except Damaged as damage:
            raise InputError("model", str(path), f"{damage}; give a whole safetensors file") from None

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """A slice of a tensor in float32, or in int8 where that is its format; a copy, nothing mapped."""
        tensor = self.tensors[name]
        dtype = _DTYPES[tensor.format]
        stored = self._file.bytes[tensor.start : tensor.stop].view(dtype).reshape(tensor.shape)
        values = stored[index].astype(np.int8 if dtype == np.int8 else np.float32, order="C")
        del stored
        self._file.let_go()
        return values


def _read_header(data: np.ndarray) -> dict[str, StoredTensor]:
    size = len(data)
    length = int.from_bytes(data[:8].tobytes(), "little")
    if size < 8 or length > _MAX_HEADER:
        raise Damaged("is not a safetensors file (it does not begin with the length of a header)")
    if 8 + length > size:
        raise Damaged(f"ends after {size} bytes, inside its header of {length}")
    try:
        header = json.loads(data[8 : 8 + length].tobytes())
    except (ValueError, RecursionError):
        raise Damaged("is damaged: its header is not valid JSON") from None
    if not isinstance(header, dict):
        raise Damaged("is damaged: its header is not a JSON object")
    header.pop("__metadata__", None)
    tensors = {name: _read_entry(name, entry, 8 + length) for name, entry in header.items()}
    position = 8 + length
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if tensor.start != position:
            raise Damaged(f"is damaged: tensor {name!r:.80} begins at byte {tensor.start}, not {position}")
        if tensor.stop > size:
            raise Damaged(f"ends after {size} bytes, inside or before tensor {name!r:.80}")
        position = tensor.stop
    if position != size:
        raise Damaged(f"is damaged: it has {size} bytes, and its header lists {position}")
    return tensors


def _read_entry(name: str, entry: object, data_start: int) -> StoredTensor:
    damage = Damaged(f"is damaged: its header does not say how tensor {name!r:.80} is stored")
    if not isinstance(entry, dict):
        raise damage
    form, sizes, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(form, str) or not isinstance(sizes, list) or not isinstance(offsets, list):
        raise damage
    if len(offsets) != 2 or not all(type(n) is int and n >= 0 for n in (*sizes, *offsets)):
        raise damage
    shape, (start, stop) = tuple(sizes), offsets
    if form not in _BITS:
        raise Damaged(f"stores tensor {name!r:.80} in the unknown number format {form!r:.20}")
    if 8 * (stop - start) != math.prod(shape) * _BITS[form]:
        raise Damaged(f"is damaged: tensor {name!r:.80} of shape {shape} has {stop - start} bytes as {form}")
    return StoredTensor(shape, form, data_start + start, data_start + stop)


class SafetensorsFolder:
    """The tensors of a folder: their `shapes` and number `formats` by name, and `read` for values.

    Where there is one file of them all it is read, as transformers does, whatever an index left beside it
    says. Raises InputError for a folder without weights, an index that does not fit its files, and what
    `SafetensorsFile` raises.
    """

    def __init__(self, folder: Path):
        self.path = folder
        if (folder / SINGLE).is_file():
            file = SafetensorsFile(folder / SINGLE)
            self._files = dict.fromkeys(file.tensors, file)
        elif (folder / INDEX).is_file():
            self._files = _by_index(folder)
        else:
            others = sorted(path.name for path in folder.glob("*.bin"))
            found = f"only {others[0]}, which is not read; " if others else ""
            message = f"has no {SINGLE} and no {INDEX}; {found}give a folder that has one of them"
            raise InputError("model", str(folder), message)
        tensors = {name: file.tensors[name] for name, file in self._files.items()}
        self.shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self.formats = {name: tensor.format for name, tensor in tensors.items()}

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """A slice of a tensor in float32, or in int8 where that is its format."""
        return self._files[name].read(name, index)

    def check_formats(self, names: Set[str], formats: Sequence[str] = tuple(FLOATS)) -> None:
        """Raises one InputError for all tensors of these names that have none of these formats."""
        wrong = [
            f"{name} as {form}"
            for name, form in self.formats.items()
            if name in names and form not in formats
        ]
        if wrong:
            message = f"{first_few('stores', wrong)}; accepted formats are {', '.join(formats)}"
            raise InputError("model", str(self.path), message)


def _by_index(folder: Path) -> dict[str, SafetensorsFile]:
    """The file of each tensor, as the index says and the files confirm."""
    path = folder / INDEX
    places = load(path).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(place, str) for place in places.values()):
        raise InputError("model", str(path), "must hold a weight_map from the names of tensors to files")
    names = sorted(set(places.values()))
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise InputError("model", str(path), first_few("names files outside its folder:", outside))
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise InputError("model", str(path), first_few("names files that are not there:", absent))
    files = {name: SafetensorsFile(folder / name) for name in names}
    wrong = [f"{name} in {place}" for name, place in places.items() if name not in files[place].tensors]
    unlisted = [
        f"{tensor} in {name}"
        for name, file in files.items()
        for tensor in file.tensors
        if places.get(tensor) != name
    ]
    problems = [first_few("lists what is not there:", wrong), first_few("does not list", unlisted)]
    if any(problems):
        raise InputError("model", str(path), "; ".join(problem for problem in problems if problem))
    return {name: files[place] for name, place in places.items()}


@dataclass(frozen=True)
class TensorToWrite:
    """A tensor that is yet to be written. The header lists every tensor before the first of them, so shape
    and format are known ahead; `pieces` gives the values, in order, when their turn comes."""

    name: str
    shape: tuple[int, ...]
    format: str
    """"f32", "bf16" or "int8"."""
    pieces: Callable[[], Iterable[np.ndarray]]

    @property
    def dtype(self) -> np.dtype:
        return _DTYPES[_WRITTEN[self.format]]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_tensors(folder: Path, tensors: Sequence[TensorToWrite], shard_bytes: int = SHARD_BYTES) -> None:
    """Writes the tensors, in this order, to one file of the folder, or to several of at most `shard_bytes`
    with an index; a larger tensor has a file of its own. All is on the disk when it returns."""
    shards = _shards(tensors, shard_bytes)
    count = len(shards)
    places: dict[str, str] = {}
    for i, shard in enumerate(shards):
        name = SINGLE if count == 1 else f"model-{i + 1:05}-of-{count:05}.safetensors"
        _write_file(folder / name, shard)
        places |= {tensor.name: name for tensor in shard}
    if count > 1:
        total = sum(tensor.bytes for tensor in tensors)
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(tensors: Sequence[TensorToWrite], limit: int) -> list[list[TensorToWrite]]:
    shards: list[list[TensorToWrite]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.bytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.bytes
    return shards


def _write_file(path: Path, shard: Sequence[TensorToWrite]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "np"}}
    position = 0
    for tensor in shard:
        offsets = [position, position + tensor.bytes]
        form = _WRITTEN[tensor.format]
        header[tensor.name] = {"dtype": form, "shape": list(tensor.shape), "data_offsets": offsets}
        position = offsets[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data is aligned
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in shard:
            written = sum(
                file.write(np.ascontiguousarray(piece, tensor.dtype).view(np.uint8).data)
                for piece in tensor.pieces()
            )
            assert written == tensor.bytes, tensor.name
        file.flush()
        os.fsync(file.fileno())
