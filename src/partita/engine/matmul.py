"""Products of floats with matrices in any format, as XLA's backends run them well.

XLA's CPU backend turns a whole bfloat16 or int8 matrix into floats before it multiplies, in memory that is
new at every step: ten times the time of the product. So there an int8 matrix is turned block by block, and a
bfloat16 one multiplied as it is, by at least two rows; a single row is multiplied in halves. Elsewhere the
conversion is part of the product. Knows nothing about shardings; scales of int8 are left to the caller.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

BLOCK_FLOATS = 2**20
"""Of an int8 matrix on a CPU at most so many are floats at a time: few enough for a cache."""


class _Dims(NamedTuple):
    """Of an einsum of two operands: dims of both that stay, that are summed, and of one alone."""

    batch: str
    summed: str
    left: str
    right: str


def product(text: str, a: jax.Array, b: jax.Array, dtype: Any, on_cpu: bool) -> jax.Array:
    """float32 einsum of two operands, computed in `dtype` (float32 or bfloat16)."""
    if on_cpu and b.dtype == jnp.int8:
        return _in_blocks(text, a, b)
    if on_cpu and b.dtype == jnp.bfloat16:
        dims = _dims(text)
        if dims.batch:  # XLA's CPU backend has no such product of bfloat16 (jaxlib 0.10.2)
            return _dot(text, a.astype(dtype).astype(jnp.float32), _floats(b))
        rows = math.prod(n for n, dim in zip(a.shape, text, strict=False) if dim in dims.left)
        if dtype == jnp.float32 or rows < 2:
            return _by_parts(text, a, b, 3 if dtype == jnp.float32 else 2)
    a, b = a.astype(dtype), b.astype(dtype)
    return _in_halves(text, a, b) if on_cpu and _is_one_row(text, a, b) else _dot(text, a, b)


def parts_in(scope: str) -> int:
    """How many products an operation of this name stack stands for one of; see `_by_parts`."""
    found = re.search(r"parts(\d)", scope)
    return int(found[1]) if found else 1


def _by_parts(text: str, a: jax.Array, b: jax.Array, count: int) -> jax.Array:
    """With a bfloat16 `b`: every row of `a` as a sum of so many of bfloat16, which are multiplied as rows of
    their own. Two hold 16 bits of a float's mantissa, three all of it."""
    rest, parts = a.astype(jnp.float32), []
    for _ in range(count):
        parts.append(jax.lax.reduce_precision(rest, exponent_bits=8, mantissa_bits=7))
        rest = rest - parts[-1]
    with jax.named_scope(f"parts{count}"):
        rows = jnp.stack(parts).astype(jnp.bfloat16)
        return jnp.sum(_dot("P" + text.replace("->", "->P"), rows, b), axis=0)


def _is_one_row(text: str, a: jax.Array, b: jax.Array) -> bool:
    """Whether it is one row times a float32 matrix whose first dims are summed, of an even length."""
    (left, right), dims = text.split("->")[0].split(","), _dims(text)
    fits = not dims.batch and left == dims.left + dims.summed and right == dims.summed + dims.right
    return (
        fits
        and b.dtype == jnp.float32
        and a.size == math.prod(b.shape[: len(dims.summed)])
        and not a.size % 2
    )


def _in_halves(text: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Such a product as the sum of two over half of the length each.

    XLA's CPU backend shares two out over its threads better than one: 425 MB of matrices took 17 ms instead
    of 22 on two cores. With more rows it does not (jaxlib 0.10.2).
    """
    out, dims = text.split("->")[1], _dims(text)
    rows, matrix = a.reshape(2, 1, -1), b.reshape(2, a.size // 2, -1)
    found = jnp.sum(_dot("PRE,PEF->PRF", rows, matrix), axis=0)
    found = found.reshape(*a.shape[: len(dims.left)], *b.shape[len(dims.summed) :])
    order = dims.left + dims.right
    return found if order == out else found.transpose([order.index(dim) for dim in out])


def _floats(values: jax.Array) -> jax.Array:
    """bfloat16 as float32 by its bits: a conversion proper is put before what was written, for all layers."""
    return jax.lax.bitcast_convert_type(as_bits(values).astype(jnp.uint32) << 16, jnp.float32)


def as_bits(values: jax.Array) -> jax.Array:
    """bfloat16 as what stands in memory, uint16."""
    return jax.lax.bitcast_convert_type(values, jnp.uint16)


def _dims(text: str) -> _Dims:
    (left, right), out = text.split("->")[0].split(","), text.split("->")[1]
    both = [dim for dim in right if dim in left]  # in the matrix's own order: it is never transposed
    return _Dims(
        "".join(dim for dim in both if dim in out),
        "".join(dim for dim in both if dim not in out),
        "".join(dim for dim in left if dim not in right),
        "".join(dim for dim in right if dim not in left),
    )


def _dot(text: str, a: jax.Array, b: jax.Array) -> jax.Array:
    (left, right), out = text.split("->")[0].split(","), text.split("->")[1]
    dims = _dims(text)
    summed, batch = (
        (tuple(left.index(d) for d in group), tuple(right.index(d) for d in group))
        for group in (dims.summed, dims.batch)
    )
    exact = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    found = jax.lax.dot_general(a, b, (summed, batch), exact, jnp.float32)
    order = dims.batch + dims.left + dims.right
    return found if order == out else found.transpose([order.index(dim) for dim in out])


def _in_blocks(text: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """With an int8 `b`, a block of one dim that is no batch dim turned to float32 after the other.

    The outermost, so that a block is one piece of memory or few.
    """
    (left, right), out = text.split("->")[0].split(","), text.split("->")[1]
    dims = _dims(text)
    count = len(dims.summed)
    if not dims.batch and count > 1 and right.startswith(dims.summed) and left.endswith(dims.summed):
        a = a.reshape(*a.shape[:-count], -1)  # dims summed together are one, and longer, dim
        b = b.reshape(-1, *b.shape[count:])
        left, right = left[: 1 - count], dims.summed[0] + right[count:]
        text = f"{left},{right}->{out}"
    a = a.astype(jnp.float32)
    axis = next(i for i, d in enumerate(right) if d not in dims.batch and b.shape[i] > 1)
    dim, entries = right[axis], b.shape[axis]
    size = _block(entries, b.size)

    def found(start: ArrayLike, size: int) -> jax.Array:
        def block(array: jax.Array, of: str) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(array, start, size, of.index(dim))

        part = a if dim in out else block(a, left)
        return _dot(text, part, block(b, right).astype(jnp.float32))

    def with_block(start: ArrayLike, size: int, total: jax.Array) -> jax.Array:
        if dim in out:
            return jax.lax.dynamic_update_slice_in_dim(total, found(start, size), start, out.index(dim))
        return total + found(start, size)

    def step(number: jax.Array, total: jax.Array) -> jax.Array:
        return with_block(number * size, size, total)

    # a constant zero would be one for all loops, held all along and copied for each
    zero = jnp.where(a.ravel()[0] > jnp.inf, 1.0, 0.0)
    sizes = dict(zip(left + right, a.shape + b.shape, strict=True))
    start = jnp.broadcast_to(zero, [sizes[d] for d in out])
    total = jax.lax.fori_loop(0, entries // size, step, start)
    rest = entries % size
    return with_block(entries - rest, rest, total) if rest else total


def _block(entries: int, floats: int) -> int:
    """Entries of a dim in one block: at most half of them, since a loop of one block is none; so many that
    blocks are equal where there is such a number near."""
    least = max(2, -(-floats // BLOCK_FLOATS))
    equal = (entries // n for n in range(least, min(4 * least, entries) + 1) if entries % n == 0)
    return next(equal, -(-entries // least))
