"""Looped collective einsums against the collective and the einsum that they stand for, and what they send."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from tests.sizes import full

from partita.engine.collective_matmul import Ring, Sums, gathered_products, scattered_product
from partita.measure.counts import count_jaxpr

RINGS = [
    ("x", {"x": 1}),
    ("x", {"x": 2}),
    ("x", {"x": 3}),
    ("x", {"x": 4}),
    ("x", {"x": 5}),
    ("x", {"x": 8}),
    ("y", {"x": 2, "y": 4}),
    ("xz", {"x": 2, "y": 2, "z": 2}),
    ("zx", {"x": 2, "y": 1, "z": 4}),  # shards in another order than the mesh's axes
]
WAYS = [False, True]
by_way = pytest.mark.parametrize("two_way", WAYS, ids=["one-way", "two-way"])
ONE_WAY = [RINGS[i] for i in (2, 3, 8)]
"""An odd ring, an even one and several axes; others are run one way in the full run."""
by_ring_and_way = pytest.mark.parametrize(
    ("axes", "sizes", "two_way"),
    [
        (*ring, two_way) if two_way or ring in ONE_WAY else full((*ring, two_way))
        for ring in RINGS
        for two_way in WAYS
    ],
    ids=str,
)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product(text: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(text, a.astype(jnp.float32), b.astype(jnp.float32), precision="highest")


def mapped(run: Callable, sizes: dict[str, int], given: Any, out: Any) -> Any:
    devices = np.array(jax.devices()[: math.prod(sizes.values())]).reshape(tuple(sizes.values()))
    mesh = jax.sharding.Mesh(devices, tuple(sizes))
    return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=tuple(given), out_specs=out, check_vma=False))


def split(axes: str, at: int, dims: int) -> PartitionSpec:
    return PartitionSpec(*[tuple(axes) if i == at else None for i in range(dims)])


@by_ring_and_way
def test_what_is_gathered_arrives_a_shard_at_a_time(axes: str, sizes: dict, two_way: bool):
    """Shards of 1, 3 and 4 entries of a dim that is summed over, two weights in one round; and of a dim that
    stays, the columns of a weight."""
    ring = Ring.over(axes, sizes, two_way)
    summed = [
        (normal(0, 2, 3, size), normal(1, size, 5), normal(2, size, 2, 3))
        for size in (ring.chips, 3 * ring.chips, 4 * ring.chips)
    ]
    y, columns = normal(3, 2, 3, 7), normal(4, 7, 3 * ring.chips)

    def run(summed, y, columns):
        found = []
        for y_part, up, q in summed:
            others = [("BLE,EF->BLF", up), ("BLE,EKD->BLKD", q)]
            whole, products = gathered_products(y_part, "BLE", "E", others, ring, product)
            found += [whole, *products]
        others = [("EF,BLE->BLF", y)]
        whole, products = gathered_products(columns, "EF", "F", others, ring, product)
        return [*found, whole, *products]

    whole = PartitionSpec()
    given = [[(split(axes, 2, 3), whole, whole)] * 3, whole, split(axes, 1, 2)]
    found = mapped(run, sizes, given, whole)(summed, y, columns)
    right = []
    for y_whole, up, q in summed:
        exact = y_whole.astype(np.float64)
        right += [exact, np.einsum("BLE,EF->BLF", exact, up), np.einsum("BLE,EKD->BLKD", exact, q)]
    right += [columns, np.einsum("BLE,EF->BLF", y.astype(np.float64), columns)]
    for got, wanted in zip(found, right, strict=True):
        for part in got.addressable_shards:  # every chip has the whole of it
            np.testing.assert_allclose(np.asarray(part.data), wanted, rtol=1e-5, atol=2e-5)


@by_ring_and_way
def test_sums_are_made_on_the_way_to_the_chip_that_keeps_them(axes: str, sizes: dict, two_way: bool):
    """Each keeps 1, 3 or 4 entries of a dim of the second operand, or of the first; the products scaled, and
    another partial sum with them."""
    ring = Ring.over(axes, sizes, two_way)
    terms, text = 2 * ring.chips, "BLF,FE->BLE"
    cases = []
    for seed, kept in enumerate((1, 3, 4)):
        wide = kept * ring.chips
        cases.append(("E", normal(seed, 2, 3, terms), normal(seed + 9, terms, wide)))
        cases.append(("L", normal(seed, 2, wide, terms), normal(seed + 9, terms, 5)))

    def run(operands):
        found = []
        for (dim, _, _), (h, down) in zip(cases, operands, strict=True):
            # each chip adds its part of what sums to 1 over all
            times, plus = (
                jnp.arange(down.shape[1]) + 1.0,
                jnp.full(h.shape[:2] + down.shape[1:], 1 / ring.chips),
            )
            sums = Sums(jnp.float32, times[None, None], plus)
            found.append(scattered_product(text, h, down, dim, ring, product, sums))
        return found

    out = [split(axes, "BLE".index(dim), 3) for dim, _, _ in cases]
    given = [[(split(axes, 2, 3), split(axes, 0, 2)) for _ in cases]]
    found = mapped(run, sizes, given, out)([(h, down) for _, h, down in cases])
    for got, (_, h, down) in zip(found, cases, strict=True):
        right = np.einsum(text, h.astype(np.float64), down) * (np.arange(down.shape[1]) + 1) + 1
        np.testing.assert_allclose(np.asarray(got), right, rtol=1e-5, atol=1e-4 * np.abs(right).max())


@by_way
@pytest.mark.parametrize("chips", [2, 4, 8])
def test_formats_are_the_callers(chips: int, two_way: bool):
    """bfloat16 activations by int8 weights; sums travel in bfloat16 and are made in float32."""
    sizes = {"x": chips}
    ring = Ring.over("x", sizes, two_way)
    y = jnp.asarray(normal(0, 1, 4, 4 * chips), jnp.bfloat16)
    weight = np.random.default_rng(1).integers(-127, 128, (4 * chips, 4 * chips)).astype(np.int8)

    def by_bfloat16(text: str, a: jax.Array, b: jax.Array) -> jax.Array:
        assert b.dtype == jnp.int8
        return jnp.einsum(text, a, b.astype(jnp.bfloat16), preferred_element_type=jnp.float32)

    def run(y, rows, columns):
        _, (gathered,) = gathered_products(y, "BLE", "E", [("BLE,EF->BLF", columns)], ring, by_bfloat16)
        summed = scattered_product("BLE,EF->BLF", y, rows, "F", ring, by_bfloat16, Sums(jnp.bfloat16))
        return gathered, summed

    given = [split("x", 2, 3), split("x", 0, 2), PartitionSpec()]
    step = mapped(run, sizes, given, (PartitionSpec(), split("x", 2, 3)))
    gathered, summed = step(y, weight, weight)
    assert gathered.dtype == summed.dtype == jnp.float32
    right = np.einsum("BLE,EF->BLF", np.asarray(y, np.float64), weight.astype(np.float64))
    np.testing.assert_allclose(gathered, right, rtol=1e-5, atol=1e-2)
    # each of up to K - 1 sums on the way was rounded to 8 bits
    assert np.abs(np.asarray(summed) - right).max() < (chips - 1) * 2**-8 * np.abs(right).max()

    sent = {np.dtype(dtype) for dtype in permuted(jax.make_jaxpr(step)(y, weight, weight))}
    assert sent == {np.dtype(jnp.bfloat16)}


def permuted(jaxpr: Any) -> list[Any]:
    """Formats of all that the permutations in a jaxpr send."""
    found = []
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if eqn.primitive.name == "ppermute":
            found.append(eqn.invars[0].aval.dtype)
        for value in eqn.params.values():
            if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                found += permuted(value)
    return found


@by_ring_and_way
def test_bytes_and_flops_are_those_of_the_collective_and_the_einsum(axes: str, sizes: dict, two_way: bool):
    ring = Ring.over(axes, sizes, two_way)
    chips = ring.chips
    y, h = jnp.zeros((2, 3, 4)), jnp.zeros((2, 3, 5))
    up, down = jnp.zeros((4 * chips, 6)), jnp.zeros((5, 4 * chips))

    def looped(y, up, h, down):
        _, gathered = gathered_products(y, "BLE", "E", [("BLE,EF->BLF", up)], ring, product)
        text = "BLF,FE->BLE"
        return gathered, scattered_product(text, h, down, "E", ring, product, Sums(jnp.float32))

    def plain(y, up, h, down):
        whole = jax.lax.all_gather(y, ring.axes, axis=2, tiled=True) if ring.axes else y
        z = product("BLF,FE->BLE", h, down)
        kept = jax.lax.psum_scatter(z, ring.axes, scatter_dimension=2, tiled=True) if ring.axes else z
        return product("BLE,EF->BLF", whole, up), kept

    whole = PartitionSpec()
    counts = [
        count_jaxpr(jax.make_jaxpr(mapped(run, sizes, [whole] * 4, (whole, whole)))(y, up, h, down), sizes)
        for run in (looped, plain)
    ]
    assert counts[0].flops == counts[1].flops
    assert sum(counts[0].sent_bytes.values()) == sum(counts[1].sent_bytes.values())
    assert set(counts[0].by_kind()) == ({"collective-permute"} if chips > 1 else set())
    each = chips - 1 + (two_way and chips % 2 == 0)
    assert sum(counts[0].messages.values()) == (2 * each if chips > 1 else 0)


# -- what a compiler may run at once ----------------------------------------------------------------------


def instructions(text: str) -> dict[str, tuple[str, list[str]]]:
    """The compiled program's main computation, in its order: (what the program calls it, operands)."""
    found, inside = {}, False
    for line in text.splitlines():
        inside = line.startswith("ENTRY") or (inside and not line.startswith("}"))
        match = re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = \S+ [\w\-]+\((.*?)\)", line)
        if inside and match:
            called = re.search(r'op_name="(?:[^"]*/)?([^"/]*)"', line)
            found[match[1]] = called[1] if called else "", re.findall(r"%([\w.\-]+)", match[2])
    return found


def needs(name: str, program: dict[str, tuple[str, list[str]]]) -> set[str]:
    """All that must come before an instruction."""
    found, wanted = set(), [name]
    while wanted:
        for operand in program[wanted.pop()][1]:
            if operand in program and operand not in found:
                found.add(operand)
                wanted.append(operand)
    return found


@by_way
@pytest.mark.parametrize("which", ["gathered", "scattered"])
def test_each_permutation_can_run_beside_a_product(which: str, two_way: bool):
    """Some product of the compiled program needs no permutation's result and is not needed by it."""
    sizes = {"x": 4}
    ring = Ring.over("x", sizes, two_way)
    plain = partial(jnp.einsum, preferred_element_type=jnp.float32)

    def gather(y, up):
        return gathered_products(y, "BE", "E", [("BE,EF->BF", up)], ring, plain)[1][0]

    def scatter(h, down):
        return scattered_product("BE,EF->BF", h, down, "F", ring, plain, Sums(jnp.float32))

    run = gather if which == "gathered" else scatter
    whole = PartitionSpec()
    step = mapped(run, sizes, [whole, whole], whole)
    rows = 64 if which == "gathered" else 16
    text = step.lower(jnp.zeros((8, 16)), jnp.zeros((rows, 256))).compile().as_text()
    program = instructions(text)
    moves = [name for name, (kind, _) in program.items() if kind == "ppermute"]
    dots = [name for name, (kind, _) in program.items() if kind == "dot_general"]
    assert (len(moves), len(dots)) == (4 if two_way else 3, 4)
    before = {name: needs(name, program) for name in moves + dots}
    for move in moves:
        assert any(move not in before[dot] and dot not in before[move] for dot in dots)
    if which == "gathered":
        assert not any(before[move] & set(dots) for move in moves)  # none waits for any product
        order = [name in moves for name in program if name in moves or name in dots]
        assert order not in (sorted(order), sorted(order, reverse=True))  # as the compiler ordered them
