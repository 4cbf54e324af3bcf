"""Resharding real arrays: whatever the steps, every device ends with the part its new sharding names.

Of the interleaved dim S that is every n-th entry, of any other dim a block.
"""

from __future__ import annotations

import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.combinations import tiny_model
from tests.engine.bench import F32, QUICK

from partita.engine.ops import JaxOps, Local
from partita.engine.steps import Programs
from partita.program.options import Backend, RunOptions
from partita.sharding import Mesh, Sharding, parse, parse_layout, plan_storage
from partita.sharding.interleave import to_blocks

BLOCKS = pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "in place"])


def programs(shape: tuple[int, ...]) -> Programs:
    model, mesh = tiny_model(), Mesh.of(shape)
    roles = parse_layout("ws2d/heads", mesh.axes)
    return Programs(model, mesh, plan_storage(model, mesh, roles, roles), F32)


def moved(on: Programs, size: int, pairs: list[tuple[Sharding, Sharding]], blocks: bool) -> None:
    """Reshards [size, size, ...] arrays, all in one program, and looks at what each device got."""
    dims = len(pairs[0][0].dims)
    whole = np.arange(size**dims, dtype=np.float32).reshape((size,) * dims)

    def run(parts: list[jax.Array]) -> list[jax.Array]:
        ops = JaxOps(on.mesh.size, F32, tiny_model(), True, RunOptions(backend=Backend(in_blocks=blocks)))
        return [ops.to(Local(t, a), str(b)).value for t, (a, b) in zip(parts, pairs, strict=True)]

    def laid(sharding: Sharding) -> np.ndarray:
        return as_blocks(whole, sharding, on.mesh)

    specs = [[on.spec(pair[i]) for pair in pairs] for i in (0, 1)]
    step = jax.shard_map(run, mesh=on.device_mesh, in_specs=(specs[0],), out_specs=specs[1], check_vma=False)
    placed = [
        jax.device_put(laid(pair[0]), on.named(spec)) for pair, spec in zip(pairs, specs[0], strict=True)
    ]
    for found, (source, target) in zip(jax.jit(step, compiler_options=QUICK)(placed), pairs, strict=True):
        for shard in found.addressable_shards:
            assert np.array_equal(np.asarray(shard.data), laid(target)[shard.index]), f"{source} -> {target}"


def as_blocks(whole: np.ndarray, sharding: Sharding, mesh: Mesh) -> np.ndarray:
    """The array in which every device's part is a block, as JAX sees it."""
    if "S" not in sharding.dims:
        return whole
    return to_blocks(whole, sharding.dims.index("S"), [mesh.size[axis] for axis in sharding["S"]])


def orders(axes: str) -> list[str]:
    """Every ordered choice of some of the axes, none and all of them too."""
    return ["".join(o) for n in range(len(axes) + 1) for o in itertools.permutations(axes, n)]


@BLOCKS
@pytest.mark.parametrize("dim", ["B", "S"])
@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 2, 4)], ids=str)
def test_one_dim_from_any_order_of_axes_to_any_other(shape: tuple[int, ...], dim: str, blocks: bool):
    pairs = [
        (parse(f"{dim}_{a}"), parse(f"{dim}_{b}")) for a, b in itertools.product(orders("xyz"), repeat=2)
    ]
    moved(programs(shape), 8, pairs, blocks)


@BLOCKS
@pytest.mark.parametrize("dims", ["BKE", "BSK"])
@pytest.mark.parametrize("shape", [(2, 2, 2), (4, 2, 1)], ids=str)
def test_three_dims_to_and_from_anywhere(shape: tuple[int, ...], dims: str, blocks: bool):
    pick = random.Random(len(shape) + shape[0])

    def anywhere() -> Sharding:
        axes = ["", "", ""]
        for axis in pick.sample("xyz", 3):
            if (dim := pick.randrange(4)) < 3:
                axes[dim] += axis
        return Sharding(dims, tuple(axes))

    moved(programs(shape), 8, [(anywhere(), anywhere()) for _ in range(150)], blocks)


@BLOCKS
@pytest.mark.parametrize("dim", ["B", "S"])
def test_partial_sums_are_summed_wherever_they_go(dim: str, blocks: bool):
    on = programs((2, 2, 2))
    targets = ["B E", "B_x E", "B E_xy", "B_y E_x", "B_zx E_y", "B_x E_zy", "B E_zyx"]
    targets = [target.replace("B", dim) for target in targets]
    partial = parse(f"{dim}_z E partialsum-xy")
    whole = np.arange(64, dtype=np.float32).reshape(8, 8)

    def run(t: jax.Array) -> list[jax.Array]:
        ops = JaxOps(on.mesh.size, F32, tiny_model(), True, RunOptions(backend=Backend(in_blocks=blocks)))
        share = t * (1 + jax.lax.axis_index(("x", "y")))  # 1, 2, 3 and 4 times: 10 in all
        return [ops.to(Local(share, partial, jnp.float32), target).value for target in targets]

    spec = on.spec(partial.summing(""))
    step = jax.shard_map(
        run,
        mesh=on.device_mesh,
        in_specs=spec,
        out_specs=[on.spec(parse(target)) for target in targets],
        check_vma=False,
    )
    placed = jax.device_put(as_blocks(whole, partial, on.mesh), on.named(spec))
    for target, found in zip(targets, jax.jit(step)(placed), strict=True):
        right = 10 * as_blocks(whole, parse(target), on.mesh)
        for shard in found.addressable_shards:
            assert np.array_equal(np.asarray(shard.data), right[shard.index]), target
