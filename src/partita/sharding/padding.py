"""Sizes padded so that a split divides: how many shards axes make, and which dim of heads pads least.

Knows nothing about phases, roles or which axes a layout chose.
"""

from __future__ import annotations

import itertools
import math

from partita.sharding.mesh import Mesh
from partita.specs.model import Latent, Model


def ceil_to(size, multiple):
    """The next multiple of `multiple` from `size` up; both may be NumPy arrays."""
    return -(-size // multiple) * multiple


def latent_sizes(latent: Latent, shards) -> dict:
    """Sizes of latent attention's dims [Q C D P R U], of which Q, C and D are split over `shards` chips."""
    rank = ceil_to(latent.kv_rank, shards)
    return {
        "Q": ceil_to(latent.query_rank or 1, shards),
        "C": rank,
        "D": ceil_to(latent.nope_dim, shards),
        "P": latent.rope_dim,
        "R": rank + latent.rope_dim,
        "U": latent.value_dim,
    }


def product(sizes, axes: str):
    """How many shards `axes` make, sizes being numbers or NumPy arrays."""
    return math.prod(sizes[axis] for axis in axes)


def union(first: str, second: str) -> str:
    """The axes of `first`, then those only `second` has."""
    return first + "".join(axis for axis in second if axis not in first)


def assign_heads(model: Model, mesh: Mesh, axes: list[str]) -> str:
    """Which of `axes` split K (the others split G): least padded heads, then least KV a chip, then in all.

    Of those that are as good, the one with the first axes.
    """
    size = mesh.size
    alone = "".join(a for a in axes if size[a] == 1)  # these split nothing, whichever dim they are given
    axes = [a for a in axes if size[a] > 1]

    def cost(k_axes: str) -> tuple[int, int, int]:
        shards = product(size, k_axes)
        kv = ceil_to(model.kv_heads, shards)
        group = ceil_to(model.group, product(size, "".join(a for a in axes if a not in k_axes)))
        return kv * group, kv // shards, kv

    # the first axes first: of assignments that are as good, K goes to these
    subsets = ("".join(chosen) for chosen in itertools.product(*((axis, "") for axis in axes)))
    return min(subsets, key=cost) + alone
