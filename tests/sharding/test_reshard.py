"""Resharding: the steps, carried out literally on a simulated mesh, end where the target says."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sharding.shardings import pairs
from tests.sharding.simulated_mesh import SimulatedMesh
from tests.sizes import examples

from partita.cost.cache import LayerStack
from partita.cost.number import Amount
from partita.cost.ops import CostOps, Sized
from partita.sharding import Sharding, parse, reshard
from partita.specs import Formats

KINDS = ("slice", "reduce-scatter", "all-reduce", "all-to-all", "all-gather")
SIZES = st.fixed_dictionaries({axis: st.integers(1, 3) for axis in "xyzw"})
SMALL = SIZES.filter(lambda sizes: math.prod(sizes.values()) <= 27)


def steps_of(source: str, target: str) -> list[str]:
    """The steps in short: kind, dim with its axes before, and the axes."""
    return [
        f"{step.kind} {step.dim} {step.axes}".replace("  ", " ")
        for step in reshard(parse(source), parse(target))
    ]


def dims_that_divide(source: Sharding, target: Sharding, sizes: dict[str, int]) -> dict[str, int]:
    """The smallest sizes a tensor can have: every axis that either sharding splits a dim over divides it."""
    return {
        dim: math.prod(sizes[axis] for axis in set(source[dim]) | set(target[dim])) for dim in source.dims
    }


@examples(100)
@given(pair=pairs(), sizes=SMALL)
def test_every_device_ends_with_its_part_of_the_target(
    pair: tuple[Sharding, Sharding], sizes: dict[str, int]
):
    source, target = pair
    mesh, dims = SimulatedMesh(sizes), dims_that_divide(source, target, sizes)
    shape = [sizes[axis] for axis in source.partial] + list(dims.values())
    terms = np.random.default_rng(0).integers(2**40, size=shape)
    summed = tuple(i for i, axis in enumerate(source.partial) if axis not in target.partial)
    wanted = mesh.place(terms.sum(axis=summed), target)

    held = mesh.place(terms, source)
    ops = CostOps(sizes, Formats(), LayerStack(1))
    for step in reshard(source, target):
        before, held = held, mesh.run(step, held)
        priced = ops._step(Sized(step.before, dims, "f32", "f32"), step)
        assert priced.sharding == step.after
        assert ops.local.elements(priced) == held[mesh.devices[0]].size
        if step.kind != "slice":
            entry = ops.ledger.entries[-1]
            assert float(entry.sent_bytes) == float(4 * mesh.sent(step, before))
            assert entry.messages == (entry.sent_bytes > 0)
            if entry.messages == 0:  # over axes of size 1 nothing is sent, and nothing need be
                assert all(np.array_equal(held[device], before[device]) for device in mesh.devices)
    for device in mesh.devices:
        np.testing.assert_array_equal(held[device], wanted[device])


@examples(100)
@given(pairs())
def test_steps_lead_from_source_to_target_in_the_cheap_order(pair: tuple[Sharding, Sharding]):
    source, target = pair
    steps = reshard(source, target)
    reached = source
    for step in steps:
        assert step.before == reached
        reached = step.after
        assert step.after != step.before
    assert reached == target
    kinds = [step.kind for step in steps if step.kind != "collective-permute"]
    assert kinds == sorted(kinds, key=KINDS.index)
    assert kinds.count("all-reduce") <= 1
    reduced = [i for i, step in enumerate(steps) if step.kind in ("slice", "reduce-scatter", "all-reduce")]
    assert reduced == list(range(len(reduced)))  # a permutation comes after the tensor became small


@examples(50)
@given(pairs())
def test_the_same_shardings_always_give_the_same_steps(pair: tuple[Sharding, Sharding]):
    source, target = pair
    first = reshard(source, target)
    reshard.cache_clear()
    assert reshard(parse(str(source)), parse(str(target))) == first
    assert reshard(source, source) == ()


def cost(
    source: Sharding, target: Sharding, dims: dict[str, int], sizes: dict[str, int]
) -> tuple[Amount, Amount]:
    """Bytes and messages of a reshard in float32."""
    ops = CostOps(sizes, Formats(), LayerStack(1))
    ops.to(Sized(source, dims, "f32", "f32"), str(target))
    return ops.ledger.total("sent_bytes"), ops.ledger.total("messages")


@examples(100)
@given(pair=pairs(), sizes=SMALL)
def test_axes_of_size_1_cost_nothing(pair: tuple[Sharding, Sharding], sizes: dict[str, int]):
    """As if they were not in the notation at all, unless the order of a dim's axes has to be mended."""
    dims = dims_that_divide(*pair, sizes)

    def real(sharding: Sharding) -> Sharding:
        kept = ["".join(a for a in axes if sizes[a] > 1) for axes in (*sharding.axes, sharding.partial)]
        return Sharding(sharding.dims, tuple(kept[:-1]), kept[-1])

    if all(step.kind != "collective-permute" for step in reshard(*pair)):
        assert cost(*pair, dims, sizes) == cost(real(pair[0]), real(pair[1]), dims, sizes)
    assert cost(*pair, dims, dict.fromkeys("xyzw", 1)) == (0, 0)


@pytest.mark.parametrize(
    ("source", "target", "steps"),
    [
        ("B L E", "B L E_x", ["slice E x"]),
        ("B L E_x", "B L E", ["all-gather E x"]),
        ("B L E_xyz", "B L E_x", ["all-gather E yz"]),
        ("B L F_yz partialsum-x", "B L F_yzx", ["reduce-scatter F x"]),
        ("B L E partialsum-xy", "B L E", ["all-reduce xy"]),
        ("B L E partialsum-xy", "B L E_x", ["reduce-scatter E x", "all-reduce y"]),
        ("B L E partialsum-xy", "B L E partialsum-y", ["all-reduce x"]),
        ("B L K_xyz D", "B_xyz L K D", ["all-to-all K xyz"]),
        ("B L K_xy D", "B_y L_x K D", ["all-to-all K y", "all-to-all K x"]),
        ("B L K_xy D", "B_x L_y K D", ["collective-permute K xy", "all-to-all K x", "all-to-all K y"]),
        ("B_z L K_y D", "B L K_y D_x", ["slice D x", "all-gather B z"]),
        ("B L E_x F_y partialsum-z", "B_w L E F_yz", ["slice B w", "reduce-scatter F z", "all-gather E x"]),
        ("B L E_xy", "B L E_yx", ["collective-permute E xy"]),
        ("B L E_xy", "B L E_y", ["collective-permute E xy", "all-gather E x"]),
        ("B L E_xyz", "B L E_xzy", ["collective-permute E yz"]),  # what is ahead of the change stays
    ],
)
def test_steps_by_name(source: str, target: str, steps: list[str]):
    assert steps_of(source, target) == steps


def test_scattering_is_chosen_before_reducing_everything():
    """2 (K-1)/K of a whole tensor for an all-reduce; scattering it first halves that."""
    ops = CostOps({"x": 4}, Formats(), LayerStack(1))
    partial = Sized(parse("B L E partialsum-x"), {"B": 2, "L": 3, "E": 8}, "f32", "f32")
    ops.to(partial, "B L E_x")
    scattered = ops.ledger.total("sent_bytes")
    ops.ledger.entries.clear()
    ops.to(partial, "B L E")
    assert (scattered, ops.ledger.total("sent_bytes")) == (4 * 48 * 3 // 4, 2 * 4 * 48 * 3 // 4)


@pytest.mark.parametrize(
    ("source", "target", "blamed"),
    [
        ("B L E", "B L F", "other dims"),
        ("B L E", "B E L", "other dims"),
        ("B L E", "B L E partialsum-x", "would create a partial sum"),
        ("B L E partialsum-y", "B L E partialsum-xy", "would create a partial sum"),
        ("B L E_x", "B L E partialsum-x", "would create a partial sum"),
    ],
)
def test_what_no_collective_can_do_is_refused(source: str, target: str, blamed: str):
    with pytest.raises(ValueError, match=blamed):
        reshard(parse(source), parse(target))


@pytest.mark.parametrize(
    ("sizes", "moves"),
    [({"x": 2, "y": 2}, 1), ({"x": 1, "y": 8}, 0), ({"x": 8, "y": 1}, 0), ({"x": 1, "y": 1}, 0)],
)
def test_a_permutation_moves_only_where_two_real_axes_swap(sizes: dict[str, int], moves: int):
    (step,) = reshard(parse("E_xy"), parse("E_yx"))
    assert step.reorders(sizes) == moves
    many = {axis: np.array([float(size), 3.0]) for axis, size in sizes.items()}
    np.testing.assert_array_equal(step.reorders(many), [moves, 1])
