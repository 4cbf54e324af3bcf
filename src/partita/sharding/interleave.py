"""Cached positions are interleaved: position p of S lies on chip p mod n, not in blocks.

Every other dim is split in blocks. Interleaving keeps chips equally full while a cache fills (as context
parallelism in other engines does, which interleaves tokens), and lets it grow where it is: more room is
more places at the end of every chip, and nothing moves.

`S_xy` counts x first: p = (i n_y + i_y) n_x + i_x for entry i of the chip at i_x, i_y. So an axis added
behind others interleaves each chip's entries over its chips, and only the innermost can leave: as with
blocks. A collective moves blocks; these two functions bring a chip's entries from interleaved order to blocks
and back. They take NumPy and JAX arrays alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

INTERLEAVED = "S"
"""The dim that is interleaved."""

Array = TypeVar("Array")


def to_blocks(array: Array, dim: int, shards: Sequence[int]) -> Array:
    """Entries of `dim` brought together by the chip they go to: a block each, first axis outermost.

    >>> import numpy as np
    >>> to_blocks(np.arange(6), 0, [3]).tolist(), from_blocks(np.array([0, 3, 1, 4, 2, 5]), 0, [3]).tolist()
    ([0, 3, 1, 4, 2, 5], [0, 1, 2, 3, 4, 5])
    """
    return _reversed(array, dim, [-1, *reversed(shards)])


def from_blocks(array: Array, dim: int, shards: Sequence[int]) -> Array:
    """Entries of `dim`, a block from every chip with the first axis outermost, in interleaved order again."""
    return _reversed(array, dim, [*shards, -1])


def _reversed(array: Any, dim: int, digits: list[int]) -> Any:
    """The array with places of `dim` read as these digits, the most significant first, in reverse order."""
    front, back = array.shape[:dim], array.shape[dim + 1 :]
    end = dim + len(digits)
    order = [*range(dim), *reversed(range(dim, end)), *range(end, end + len(back))]
    return array.reshape(*front, *digits, *back).transpose(order).reshape(array.shape)
