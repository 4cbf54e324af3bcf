"""A file mapped into memory, whose pages can be let go once they are read.

Without that, every page ever read counts as this process's memory while the file is open. Knows nothing
about what is in a file.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np


class MappedFile:
    """The bytes of a file as an array, read when they are looked at.

    Raises OSError for a file that cannot be read and ValueError for an empty one.
    """

    def __init__(self, path: Path):
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.bytes = np.frombuffer(self._map, np.uint8)

    def let_go(self) -> None:
        """Drops the pages from this process's memory; looked at again, they are read again."""
        if hasattr(mmap, "MADV_DONTNEED"):  # Linux
            self._map.madvise(mmap.MADV_DONTNEED)
