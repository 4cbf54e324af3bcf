"""Products of floats with matrices in any format: every product of the program goes through here.

A native kernel would take the place of `product`. Matrices in bfloat16 and int8 are converted as part of the
product; how XLA's CPU backend has to be helped is in `cpu.py`. Knows nothing about shardings; scales of int8
are left to the caller.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Dims(NamedTuple):
    """The dims of an einsum of two operands: in both and kept, in both and summed, in one alone."""

    batch: str
    summed: str
    left: str
    right: str


def product(text: str, a: jax.Array, b: jax.Array, dtype: Any) -> jax.Array:
    """float32 einsum of two operands, computed in `dtype` (float32 or bfloat16)."""
    return dot(text, a.astype(dtype), b.astype(dtype))


def dims_of(text: str) -> Dims:
    (left, right), out = text.split("->")[0].split(","), text.split("->")[1]
    both = [dim for dim in right if dim in left]  # in the matrix's own order: it is never transposed
    return Dims(
        "".join(dim for dim in both if dim in out),
        "".join(dim for dim in both if dim not in out),
        "".join(dim for dim in left if dim not in right),
        "".join(dim for dim in right if dim not in left),
    )


def dot(text: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """float32 einsum of two operands of one format, in their own order: neither is transposed before."""
    (left, right), out = text.split("->")[0].split(","), text.split("->")[1]
    dims = dims_of(text)
    summed, batch = (
        (tuple(left.index(d) for d in group), tuple(right.index(d) for d in group))
        for group in (dims.summed, dims.batch)
    )
    exact = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    found = jax.lax.dot_general(a, b, (summed, batch), exact, jnp.float32)
    order = dims.batch + dims.left + dims.right
    return found if order == out else found.transpose([order.index(dim) for dim in out])
