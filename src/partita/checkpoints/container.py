"""What files of named tensors have in common: the readers of the GGUF and safetensors formats build on it."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Index = tuple[slice, ...]
"""A slice of step 1 for each dim of an array, in the coordinates of the whole; () is all of it."""

_SHOWN = 3  # names of a list in an error


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as the header of a file lists it: its row-major shape, the format of its numbers by the
    name that the file's format has for it, and where its bytes start and stop in the file."""

    shape: tuple[int, ...]
    format: str
    start: int
    stop: int


class Damaged(Exception):
    """A file cannot be read or is not whole; the message says in which way, without the file's name."""


class MappedFile:
    """The bytes of a file as an array, read from the disk when they are looked at.

    Raises Damaged for a file that cannot be read or is empty.
    """

    def __init__(self, path: Path):
        try:
            with open(path, "rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise Damaged(f"cannot be read ({error.strerror})") from None
        except ValueError:  # what mapping an empty file raises
            raise Damaged("is empty") from None
        self.bytes = np.frombuffer(self._map, np.uint8)

    def let_go(self) -> None:
        """Drops the pages from this process's memory; looked at again, they are read again.

        Without it, every page ever read counts as memory of this process while the file is open.
        """
        if hasattr(mmap, "MADV_DONTNEED"):  # Linux
            self._map.madvise(mmap.MADV_DONTNEED)


def first_few(what: str, names: Iterable[str]) -> str:
    """The first few names after a verb, and how many more there are, for an error; empty for no names."""
    found = list(names)
    if not found:
        return ""
    rest = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{what} {', '.join(f'{name:.80}' for name in found[:_SHOWN])}{rest}"
