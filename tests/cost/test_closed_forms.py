"""What the program moves, in the cost interpreter, against the closed forms of Pope et al. 2022.

The forms are exact: with the factor (K-1)/K of a collective over K chips (appendix A.1), which the paper's
main text takes as 1. All tensors are float32, so a count of elements is a quarter of the bytes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from partita.cost.cache import LayerStack
from partita.cost.ledger import Ledger
from partita.cost.ops import CostOps, Sized
from partita.cost.step import sized_weights
from partita.program import transformer
from partita.sharding import (
    FFN_NAMES,
    Layout,
    Mesh,
    parse,
    parse_roles,
    plan_storage,
    resolve,
)
from partita.specs import Formats, Model

F32 = Formats(weights="f32", activations="f32", kv="f32", reduce="f32")


@dataclass(frozen=True)
class Sizes:
    """Sizes in the paper's letters; X, the axis that the 2D layout splits E over, comes first in a mesh."""

    E: int
    F: int
    matrices: int = 2  # of the feed-forward block: 3 for SwiGLU, whose input matrix is doubled

    def model(self, kv_heads: int = 1) -> Model:
        return Model(
            name="paper",
            layers=1,
            d_model=self.E,
            d_ff=self.F,
            heads=64,
            kv_heads=kv_heads,
            head_dim=16,
            vocabulary=1,
            feed_forward="swiglu" if self.matrices == 3 else "gelu",
        )


def ffn_layout(model: Model, ffn: str, mesh: Mesh, batch: int, queries: int = 1) -> Layout:
    """A named layout over the storage of 2D decode, except for 1D, which has its own."""
    roles = parse_roles(ffn, "heads", mesh.axes)
    decode = roles if ffn == "ws1d" else parse_roles("ws2d", "heads", mesh.axes)
    return resolve(roles, plan_storage(model, mesh, decode, roles), mesh, batch, queries)


def ffn_block(
    model: Model,
    layout: Layout,
    sizes: Mapping[str, Any],
    batch: Any,
    queries: Any = 1,
    formats: Formats = F32,
) -> Ledger:
    """The feed-forward block of one layer from residual to residual: gather, both matmuls, reduce."""
    ops = CostOps(sizes, formats, LayerStack(1))
    padded = layout.storage.padded(model, sizes)
    assert np.all(padded["E"] == model.d_model)  # no padding here: the closed forms know none
    assert np.all(padded["F"] == model.d_ff)
    weights = sized_weights(ops, model, layout.storage, padded)
    tokens = {"B": batch, "L": queries, "E": model.d_model}
    x = Sized(parse(layout.residual), tokens, formats.activations, formats.activations)
    inputs = transformer.ffn_inputs(ops, layout, weights)
    h = transformer.gathered_product(ops, layout, x, inputs)
    transformer.ffn_output(ops, model, layout, weights, h, layout.residual)
    return ops.ledger


def elements(ledger: Ledger) -> Fraction:
    """Elements sent by one chip, of 4 bytes each; exact where no number is a float."""
    sent = ledger.total("sent_bytes")
    assert isinstance(sent, int)
    return Fraction(sent, 4)


# -- the closed forms; T tokens, n chips ----------------------------------------------------------------


def less_own(chips: int) -> Fraction:
    """(K-1)/K: what a chip need not be sent is its own part."""
    return Fraction(chips - 1, chips)


def one_d(s: Sizes, T: int, n: int) -> Fraction:
    """Section 3.2.1: 2 T E."""
    return 2 * T * s.E * less_own(n)


def two_d(s: Sizes, T: int, n: int, X: int) -> Fraction:
    """Section 3.2.2: 2 T (E/X + F/YZ); every input matrix adds T F/YZ."""
    YZ = n // X
    return Fraction(2 * T * s.E, X) * less_own(YZ) + Fraction(s.matrices * T * s.F, YZ) * less_own(X)


def gathered(s: Sizes, T: int, n: int, N: int) -> Fraction:
    """Section 3.2.3, weights gathered over N chips: 2 E F N/n + 2 T E/N."""
    weights = Fraction(s.matrices * s.E * s.F * N, n) * less_own(N)
    return weights + Fraction(2 * T * s.E, N) * less_own(n // N)


def closed_form(s: Sizes, ffn: str, T: int, mesh: Mesh) -> Fraction:
    if ffn == "ws1d":
        return one_d(s, T, mesh.chips)
    if ffn == "ws2d":
        return two_d(s, T, mesh.chips, X=mesh.sizes[0])
    over = {"wg-x": 1, "wg-xy": 2, "wg-xyz": len(mesh.sizes)}[ffn]
    return gathered(s, T, mesh.chips, N=math.prod(mesh.sizes[:over]))


# -- every layout on many meshes ------------------------------------------------------------------------

MESHES = [
    (8, 1, 1),
    (2, 2, 2),
    (1, 2, 4),
    (4, 4, 4),
    (7, 1, 1),
    (3, 2, 1),
    (2, 8),
    (12,),
    (2, 3, 2, 2),
    (1, 1, 1),
]


@pytest.mark.parametrize("matrices", [2, 3])
@pytest.mark.parametrize("ffn", FFN_NAMES)
@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_a_block_moves_exactly_what_the_closed_form_says(ffn: str, shape: tuple[int, ...], matrices: int):
    mesh, sizes = Mesh.of(shape), Sizes(E=1344, F=4032, matrices=matrices)  # 64 x 21 and 3 of it
    for kv_heads in (1, 8, 64):  # changes the order in which F is split, and nothing else
        model = sizes.model(kv_heads)
        for batch, queries in ((1344, 1), (1344, 2), (1, 1344)):  # many sequences, or one long one
            layout = ffn_layout(model, ffn, mesh, batch, queries)
            ledger = ffn_block(model, layout, mesh.size, batch, queries)
            if kv_heads == 8:  # F is split over axes of K and of G: gathering may first have to reorder them
                ledger.entries = [entry for entry in ledger.entries if entry.kind != "collective-permute"]
            assert elements(ledger) == closed_form(sizes, ffn, batch * queries, mesh)


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_gathering_every_weight_moves_no_activation(shape: tuple[int, ...]):
    mesh, model = Mesh.of(shape), Sizes(E=1344, F=4032).model()
    ledger = ffn_block(model, ffn_layout(model, "wg-xyz", mesh, 1344), mesh.size, 1344)
    moved = [entry for entry in ledger.entries if entry.messages]
    assert {entry.kind for entry in moved} <= {"all-gather"}
    assert all("B" not in entry.before[0].dims for entry in moved)
    assert bool(moved) == (mesh.chips > 1)


@pytest.mark.parametrize("ffn", ["ws1d", "ws2d"])
def test_keeping_weights_stationary_moves_no_weight(ffn: str):
    mesh, model = Mesh.of((2, 2, 2)), Sizes(E=1344, F=4032).model()
    ledger = ffn_block(model, ffn_layout(model, ffn, mesh, 8), mesh.size, 8)
    moved = [(entry.kind, entry.axes) for entry in ledger.entries if entry.messages]
    assert (
        moved
        == {
            "ws1d": [("all-gather", "xyz"), ("reduce-scatter", "xyz")],
            "ws2d": [
                ("all-gather", "yz"),
                ("reduce-scatter", "x"),
                ("all-gather", "x"),
                ("reduce-scatter", "yz"),
            ],
        }[ffn]
    )


def test_volume_of_one_dimension_does_not_fall_with_chips_and_of_two_it_does():
    """Approximately 2 T E at any n, against 8 T E / sqrt(n) for F = 4 E."""
    sizes, counted = Sizes(E=4096, F=16384), {}
    for n, X in ((16, 2), (64, 4), (256, 8)):
        for ffn in ("ws1d", "ws2d"):
            mesh = Mesh.of((X, n // X))
            layout = ffn_layout(sizes.model(), ffn, mesh, 256)
            counted[ffn, n] = elements(ffn_block(sizes.model(), layout, mesh.size, 256))
        own = Fraction(2 * 256, n)  # of every element, T/n are a chip's own: what the approximation adds
        assert counted["ws1d", n] + own * sizes.E == 2 * 256 * sizes.E
        assert counted["ws2d", n] + own * (sizes.E + sizes.F) == 8 * 256 * sizes.E // math.isqrt(n)
    assert counted["ws1d", 16] < counted["ws1d", 64] < counted["ws1d", 256]
    assert counted["ws2d", 16] > counted["ws2d", 64] > counted["ws2d", 256]
    assert counted["ws2d", 64] < counted["ws1d", 64]
    assert counted["ws2d", 256] < counted["ws1d", 256]


# -- the best mesh --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [16, 64, 256])
@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("matrices", [2, 3])
def test_the_best_split_of_e_is_the_divisor_nearest_to_the_optimum(n: int, ratio: int, matrices: int):
    """Section 3.2.2: X = sqrt(n E / F), nearest as a ratio; with SwiGLU sqrt(2 n E / (3 F))."""
    sizes = Sizes(E=1024, F=1024 * ratio, matrices=matrices)
    model, divisors = sizes.model(), [2**i for i in range(n.bit_length())]
    X = np.array(divisors, float)
    layout = ffn_layout(model, "ws2d", Mesh.of((2, n // 2)), 64)
    volume = ffn_block(model, layout, {"x": X, "y": n / X}, np.full(X.shape, 64.0)).total("sent_bytes") / 4
    assert isinstance(volume, np.ndarray)

    for i, divisor in enumerate(divisors):  # one pass over all of them is the same as one at a time
        mesh = Mesh.of((divisor, n // divisor))
        alone = elements(ffn_block(model, ffn_layout(model, "ws2d", mesh, 64), mesh.size, 64))
        assert alone == volume[i] == two_d(sizes, 64, n, divisor)

    optimum = math.sqrt(2 * n / (matrices * ratio))
    distance = np.abs(np.log(X / optimum))
    assert set(X[volume == volume.min()]) == set(X[distance < distance.min() + 1e-9])
    if matrices == 2 and ratio == 4:
        assert X[volume.argmin()] == {16: 2, 64: 4, 256: 8}[n]  # X = 0.5 sqrt(n)


# -- the best layout by tokens in the batch ----------------------------------------------------------------

FIGURE_3 = Sizes(E=16384, F=65536)  # Pope et al. 2022, Figure 3: d_model 16384, d_ff 65536, X = Y = Z = 4
CUBE = Mesh.of((4, 4, 4))
ORDER = ["ws2d", "wg-x", "wg-xy", "wg-xyz"]
GRAIN = CUBE.chips  # the least step of the batch that every layout splits evenly


def volumes(s: Sizes, tokens: np.ndarray, formats: Formats = F32) -> np.ndarray:
    """Bytes each of ORDER moves [layout, tokens]: one pass of the program a layout."""
    model, found = s.model(), []
    for ffn in ORDER:
        layout = ffn_layout(model, ffn, CUBE, int(tokens.max()))
        ledger = ffn_block(model, layout, CUBE.size, tokens, formats=formats)
        found.append(ledger.total("sent_bytes") + 0 * tokens)  # wg-xyz moves the same at any number of tokens
    return np.stack(found)


@pytest.mark.parametrize(
    ("sizes", "formats", "switches"),
    [
        # 2D -> X at T = E; N1 -> N2 at T = N1 N2 F / n, both half as often again with a third matrix
        (FIGURE_3, F32, (16_384, 65_536, 1_048_576)),
        (Sizes(16384, 65536, matrices=3), F32, (16_384, 98_304, 1_572_864)),
        # weights of 1 byte and activations of 2: gathering weights pays at half the tokens, a little later
        # as 4-byte scales come with gathered output channels (E over X, F over YZ): 4 E 3/4, 4 F/4 3/4 and
        # 4 F 3/4 bytes more, where the collectives of a token send 3/4 E, 3/4 E and 3/16 E bytes less
        (
            FIGURE_3,
            Formats(weights="int8", activations="bf16", reduce="bf16"),
            (8_192 + 4, 32_768 + 4, 524_288 + 64),
        ),
    ],
)
def test_the_cheapest_layout_gathers_over_more_chips_as_tokens_grow(
    sizes: Sizes, formats: Formats, switches: tuple[int, int, int]
):
    for i, switch in enumerate(switches):
        moved = volumes(sizes, np.array([switch - GRAIN, switch, switch + GRAIN], float), formats)
        below, at, above = moved.T
        assert below.argmin() == i
        assert at[i] == at[i + 1] == at.min()
        assert above.argmin() == i + 1
    tokens = np.arange(GRAIN, 2 * switches[-1], GRAIN, dtype=float)
    best = volumes(sizes, tokens, formats).argmin(axis=0)  # of equals the first: fewer chips
    np.testing.assert_array_equal(best, np.searchsorted(switches, tokens, side="left"))


def test_one_pass_over_many_batches_is_each_batch_priced_alone():
    tokens = [64, 2048, 16_384, 65_536, 200_000, 1_048_576]
    moved = volumes(FIGURE_3, np.array(tokens, float)) / 4
    for i, ffn in enumerate(ORDER):
        for batch, many in zip(tokens, moved[i], strict=True):
            model = FIGURE_3.model()
            alone = elements(ffn_block(model, ffn_layout(model, ffn, CUBE, batch), CUBE.size, batch))
            assert alone == many == closed_form(FIGURE_3, ffn, batch, CUBE)
