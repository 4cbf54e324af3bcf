"""Sizes padded so that a split divides: how many shards axes make, and which dim of heads pads least."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import overload

import numpy as np

from partita.sharding.mesh import Mesh
from partita.specs.model import Model

Number = float | np.ndarray
"""A size, a count or seconds: an int or a float of one candidate, or an array with one for each of many."""


@overload
def ceil_to(size: int, multiple: int) -> int: ...
@overload
def ceil_to(size: Number, multiple: Number) -> Number: ...
def ceil_to(size: Number, multiple: Number) -> Number:
    """The next multiple of `multiple` from `size` up."""
    return -(-size // multiple) * multiple


@overload
def product(sizes: Mapping[str, int], axes: str) -> int: ...
@overload
def product(sizes: Mapping[str, Number], axes: str) -> Number: ...
def product(sizes: Mapping[str, Number], axes: str) -> Number:
    """How many shards `axes` make."""
    return math.prod(sizes[axis] for axis in axes)


def union(first: str, second: str) -> str:
    """The axes of `first`, then those only `second` has."""
    return first + "".join(axis for axis in second if axis not in first)


def padded_heads(kv: int, group: int, over_k: int, over_g: int) -> tuple[int, int, int]:
    """The cost of splitting K heads `over_k` ways and their groups `over_g` ways; the least is best.

    It is padded heads in all, then K heads of a chip, then K heads in all.
    """
    padded = ceil_to(kv, over_k)
    return padded * ceil_to(group, over_g), padded // over_k, padded


def whole_shares(kv: int, group: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """For each axis the ways it splits K: its size or, where it splits G instead, 1.

    Among those that are equally good by `padded_heads` it is the one where the first axes split K.
    """
    total = math.prod(sizes)

    def cost(shares: tuple[int, ...]) -> tuple[int, int, int]:
        over_k = math.prod(shares)
        return padded_heads(kv, group, over_k, total // over_k)

    return min(itertools.product(*((size, 1) if size > 1 else (1,) for size in sizes)), key=cost)


def assign_heads(model: Model, mesh: Mesh, axes: Sequence[str]) -> str:
    """Which of `axes` split K, as `whole_shares` has it; the others split G."""
    sizes = [mesh.size[a] for a in axes]
    shares = whole_shares(model.kv_heads, model.group, sizes)
    alone = [a for a, size in zip(axes, sizes, strict=True) if size == 1]  # these split nothing in either
    return "".join([a for a, share in zip(axes, shares, strict=True) if share > 1] + alone)
