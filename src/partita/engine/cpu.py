"""What XLA's CPU backend has to be helped with (jaxlib 0.10.2); other backends need none of this.

It turns a whole bfloat16 or int8 matrix into floats before it multiplies, in memory that is new at every
step: ten times the time of the product. So an int8 matrix is turned block by block, and a bfloat16 one
multiplied as it is, by at least two rows; a single row is multiplied in halves. Collectives along an inner
dim would transpose the array, element by element, to make that dim the outermost and back (the gather of a
weight's columns took 2.4 times as long), so shards travel stacked in front and are put in place by a copy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from partita.engine.matmul import dims_of, dot

SPARING = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
"""Compiler options of a step that gathers weights, or makes floats of bfloat16 keys and values: it else
starts with those of all layers, and so holds the whole model, or twice the cache beside it."""

BLOCK_FLOATS = 2**20
"""How many numbers of an int8 matrix are floats at a time, at most: few enough for a cache."""


def product(text: str, a: jax.Array, b: jax.Array, dtype: Any) -> jax.Array:
    """The same as `matmul.product`, in the way that is fastest here."""
    if b.dtype == jnp.int8:
        return _in_blocks(text, a, b)
    if b.dtype == jnp.bfloat16:
        dims = dims_of(text)
        if dims.batch:  # there is no such product of bfloat16
            return dot(text, a.astype(dtype).astype(jnp.float32), _floats(b))
        rows = math.prod(n for n, dim in zip(a.shape, text, strict=False) if dim in dims.left)
        if dtype == jnp.float32 or rows < 2:
            return _by_parts(text, a, b, 3 if dtype == jnp.float32 else 2)
    a, b = a.astype(dtype), b.astype(dtype)
    return _in_halves(text, a, b) if _is_one_row(text, a, b) else dot(text, a, b)


def parts_in(scope: str) -> int:
    """How many products an operation of this name stack stands for one of; see `_by_parts`."""
    found = re.search(r"parts(\d)", scope)
    return int(found[1]) if found else 1


def _by_parts(text: str, a: jax.Array, b: jax.Array, count: int) -> jax.Array:
    """The product with a bfloat16 `b`: every row of `a` is a sum of bfloat16 rows, which are multiplied
    apart. Two hold 16 bits of a float's mantissa, three all of it."""
    rest, parts = a.astype(jnp.float32), []
    for _ in range(count):
        parts.append(jax.lax.reduce_precision(rest, exponent_bits=8, mantissa_bits=7))
        rest = rest - parts[-1]
    with jax.named_scope(f"parts{count}"):
        rows = jnp.stack(parts).astype(jnp.bfloat16)
        return jnp.sum(dot("P" + text.replace("->", "->P"), rows, b), axis=0)


def _is_one_row(text: str, a: jax.Array, b: jax.Array) -> bool:
    """Whether it is one row times a float32 matrix whose first dims are summed, of an even length."""
    (left, right), dims = text.split("->")[0].split(","), dims_of(text)
    fits = not dims.batch and left == dims.left + dims.summed and right == dims.summed + dims.right
    return (
        fits
        and b.dtype == jnp.float32
        and a.size == math.prod(b.shape[: len(dims.summed)])
        and not a.size % 2
    )


def _in_halves(text: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Such a product as the sum of two over half of the length each.

    Two are shared out over threads better than one: 425 MB of matrices took 17 ms instead of 22 on two cores.
    With more rows they are not.
    """
    out, dims = text.split("->")[1], dims_of(text)
    rows, matrix = a.reshape(2, 1, -1), b.reshape(2, a.size // 2, -1)
    found = jnp.sum(dot("PRE,PEF->PRF", rows, matrix), axis=0)
    found = found.reshape(*a.shape[: len(dims.left)], *b.shape[len(dims.summed) :])
    order = dims.left + dims.right
    return found if order == out else found.transpose([order.index(dim) for dim in out])


def _floats(values: jax.Array) -> jax.Array:
    """bfloat16 as float32 by its bits: a conversion proper is put before what was written, for all layers."""
    return jax.lax.bitcast_convert_type(as_bits(values).astype(jnp.uint32) << 16, jnp.float32)


def as_bits(values: jax.Array) -> jax.Array:
    """bfloat16 as what stands in memory, uint16."""
    return jax.lax.bitcast_convert_type(values, jnp.uint16)


def _in_blocks(text: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """The product with an int8 `b`, of which one block after the other is turned to float32.

    The outermost, so that a block is one piece of memory or few.
    """
    (left, right), out = text.split("->")[0].split(","), text.split("->")[1]
    dims = dims_of(text)
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
        return dot(text, part, block(b, right).astype(jnp.float32))

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


# -- other operations -----------------------------------------------------------------------------------


def apart(value: jax.Array) -> jax.Array:
    """The value, behind a comparison. Without it XLA makes one kernel of both halves of a parallel block up
    to their sum, and for that kernel writes out constants as large as the hidden units."""
    return jnp.where(value == value, value, jnp.nan)


def scattered(
    put: Callable[[jax.Array, jax.Array], jax.Array], cache: jax.Array, new: jax.Array
) -> jax.Array:
    """put(cache, new), done on the bits of bfloat16: these are else scattered as floats, all of them."""
    if cache.dtype != jnp.bfloat16:
        return put(cache, new)
    return jax.lax.bitcast_convert_type(put(as_bits(cache), as_bits(new)), cache.dtype)


# -- collectives of shards in blocks --------------------------------------------------------------------


def reduce_scatter(value: jax.Array, axes: tuple[str, ...], dim: int, shards: Sequence[int]) -> jax.Array:
    """Sums over mesh axes of so many devices, each keeping its shard of a dim."""
    return jax.lax.psum_scatter(_stacked(value, dim, shards), axes)


def all_to_all(
    value: jax.Array, axes: tuple[str, ...], dim: int, to: int, shards: Sequence[int]
) -> jax.Array:
    """Shards of one dim traded for shards of another, `to`."""
    found = jax.lax.all_to_all(_stacked(value, to, shards), axes, split_axis=0, concat_axis=0)
    return _joined(found, dim)


def all_gather(value: jax.Array, axes: tuple[str, ...], dim: int) -> jax.Array:
    """All shards of a dim."""
    return _joined(jax.lax.all_gather(value, axes), dim)


def _stacked(value: jax.Array, dim: int, shards: Sequence[int]) -> jax.Array:
    """The shards of a dim, stacked in front."""
    shape = value.shape
    cut = value.reshape(*shape[:dim], math.prod(shards), -1, *shape[dim + 1 :])
    return jnp.moveaxis(cut, dim, 0)


def _joined(blocks: jax.Array, dim: int) -> jax.Array:
    """Shards of a dim that are stacked in front, joined along it."""
    shape = blocks.shape[1:]
    return jnp.moveaxis(blocks, 0, dim).reshape(*shape[:dim], -1, *shape[dim + 1 :])
