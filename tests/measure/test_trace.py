"""Counting a jaxpr: loops, operands, dots, and each collective by the bytes one device sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from partita.measure.counts import Counts
from partita.measure.trace import count_jaxpr

SIZES = {"x": 2, "y": 4}


def counted(step: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = jnp.float32) -> Counts:
    """What one device does in `step`, whose arguments are its own parts, of these shapes."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"), (AxisType.Explicit,) * 2)
    whole = PartitionSpec()
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(whole,) * len(shapes), out_specs=whole, check_vma=False)
    jaxpr = jax.make_jaxpr(mapped)(*[jax.ShapeDtypeStruct(shape, dtype) for shape in shapes])
    return count_jaxpr(jaxpr, SIZES)


def only(counts: Counts) -> tuple[tuple[str, str], int | float, int]:
    ((key, sent),) = counts.sent_bytes.items()
    assert set(counts.messages) == {key}
    return key, float(sent), counts.messages[key]


@pytest.mark.parametrize(
    ("step", "key", "sent"),
    [
        (lambda t: jax.lax.all_gather(t, "y", axis=0, tiled=True), ("all-gather", "y"), 3 * 256),
        (lambda t: jax.lax.all_gather(t, ("y", "x"), axis=1, tiled=True), ("all-gather", "xy"), 7 * 256),
        (
            lambda t: jax.lax.psum_scatter(t, "y", scatter_dimension=0, tiled=True),
            ("reduce-scatter", "y"),
            192,
        ),
        (lambda t: jax.lax.psum(t, "x"), ("all-reduce", "x"), 256),
        (lambda t: jax.lax.psum(t, ("x", "y")), ("all-reduce", "xy"), 2 * 256 * 7 / 8),
        (lambda t: jax.lax.all_to_all(t, "y", 0, 1, tiled=True), ("all-to-all", "y"), 192),
        (lambda t: jax.lax.ppermute(t, "y", [(0, 1), (1, 0)]), ("collective-permute", "y"), 256),
    ],
    ids=[
        "all-gather",
        "all-gather of two",
        "reduce-scatter",
        "all-reduce",
        "all-reduce of two",
        "all-to-all",
        "permute",
    ],
)
def test_bytes_of_every_kind(step: Callable[..., Any], key: tuple[str, str], sent: float):
    assert only(counted(step, (8, 8))) == (key, sent, 1)
    assert only(counted(step, (8, 8), dtype=jnp.bfloat16)) == (key, sent / 2, 1)


def test_every_operand_of_one_sum_counts():
    found = counted(lambda a, b: jax.lax.psum((a, b), "x"), (4,), (3, 2))
    assert only(found) == (("all-reduce", "x"), 16 + 24, 2)


def test_a_scan_counts_once_for_each_turn():
    def inner(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jax.lax.psum(x, "y"), None

    def outer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        x, _ = jax.lax.scan(inner, x @ w, None, length=5)
        return jax.lax.psum(x, "x"), None

    found = counted(lambda x, ws: jax.lax.scan(outer, x, ws)[0], (2, 4), (3, 4, 4))
    assert found.messages == {("all-reduce", "y"): 15, ("all-reduce", "x"): 3}
    assert found.sent_bytes["all-reduce", "y"] == 15 * 2 * 32 * 3 / 4
    assert found.flops == 3 * 2 * 2 * 4 * 4


def test_functions_called_inside_count():
    inner = jax.jit(lambda t: jax.lax.psum(t @ t, "x"))
    found = counted(lambda t: inner(inner(t)), (4, 4))
    assert found.messages == {("all-reduce", "x"): 2}
    assert found.flops == 2 * 2 * 4**3


@pytest.mark.parametrize(
    ("text", "shapes", "flops"),
    [
        ("BLE,EF->BLF", [(2, 3, 5), (5, 7)], 2 * 2 * 3 * 5 * 7),
        ("BLKGD,BSKD->BLKGS", [(2, 3, 5, 4, 8), (2, 9, 5, 8)], 2 * 2 * 3 * 5 * 4 * 8 * 9),
        ("BLKGD,KGDE->BLE", [(2, 3, 5, 4, 8), (5, 4, 8, 6)], 2 * 2 * 3 * 5 * 4 * 8 * 6),
    ],
)
def test_flops_of_einsums(text: str, shapes: list[tuple[int, ...]], flops: int):
    assert counted(lambda a, b: jnp.einsum(text, a, b), *shapes).flops == flops


@pytest.mark.parametrize(
    "step",
    [
        lambda t: jax.lax.while_loop(lambda u: u.sum() < 10, lambda u: u + 1, t),
        lambda t: jax.lax.cond(t.sum() > 0, lambda u: u, lambda u: -u, t),
    ],
    ids=["while", "cond"],
)
def test_a_program_of_unknown_length_is_refused(step: Callable[..., Any]):
    with pytest.raises(ValueError, match=r"cannot count a program with '(while|cond)'"):
        counted(step, (4,))
