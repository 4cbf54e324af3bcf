"""The tensors of a model in safetensors: one file, or several with an index of what lies where.

Knows nothing about Transformers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from partita.checkpoints.checking import some
from partita.checkpoints.safetensors_file import FLOATS, SafetensorsFile
from partita.errors import InputError
from partita.program.parameters import Shape
from partita.specs.hugging_face.file import load

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class SafetensorsFolder:
    """The tensors of a folder: their `shapes` and number `formats` by name, and `read` for values.

    Raises InputError for a folder without weights, an index that does not fit its files, and what
    `SafetensorsFile` raises.
    """

    def __init__(self, folder: Path):
        self.path = folder
        if (folder / INDEX).is_file():
            self._files = _by_index(folder)
        elif (folder / SINGLE).is_file():
            file = SafetensorsFile(folder / SINGLE)
            self._files = dict.fromkeys(file.tensors, file)
        else:
            others = sorted(path.name for path in folder.glob("*.bin"))
            found = f"only {others[0]}, which is not read; " if others else ""
            message = f"has no {SINGLE} and no {INDEX}; {found}give a folder that has one of them"
            raise InputError("model", str(folder), message)
        tensors = {name: file.tensors[name] for name, file in self._files.items()}
        self.shapes: dict[str, Shape] = {name: tensor.shape for name, tensor in tensors.items()}
        self.formats = {name: tensor.format for name, tensor in tensors.items()}

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A slice of a tensor in float32, or in int8 where that is its format."""
        return self._files[name].array(name, index)

    def check_formats(self, names: set[str], formats: tuple[str, ...] = tuple(FLOATS)) -> None:
        """Raises one InputError for all tensors of these names that have none of these formats."""
        wrong = [
            f"{name} as {form}"
            for name, form in self.formats.items()
            if name in names and form not in formats
        ]
        if wrong:
            message = f"{some('stores', wrong)}; accepted formats are {', '.join(formats)}"
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
        raise InputError("model", str(path), some("names files outside its folder:", outside))
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise InputError("model", str(path), f"{some('names files that are not there:', absent)}")
    files = {name: SafetensorsFile(folder / name) for name in names}
    wrong = [f"{name} in {place}" for name, place in places.items() if name not in files[place].tensors]
    unlisted = [
        f"{tensor} in {name}"
        for name, file in files.items()
        for tensor in file.tensors
        if places.get(tensor) != name
    ]
    problems = [some("lists what is not there:", wrong), some("does not list", unlisted)]
    if any(problems):
        raise InputError("model", str(path), "; ".join(problem for problem in problems if problem))
    return {name: files[place] for name, place in places.items()}
